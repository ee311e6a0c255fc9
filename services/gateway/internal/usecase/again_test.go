package usecase

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatIsNotAnsweredIsAskedAgainAndWhatIsAnsweredIsNot(t *testing.T) {
	const allowed = 3*againAfter + againAfter/2
	refusal := errors.New("no")
	for name, c := range map[string]struct {
		silent, attempts int
		answer, want     error
		took             time.Duration
	}{
		"answered at once": {0, 1, nil, nil, 0},
		"refused at once":  {0, 1, refusal, refusal, 0},
		"lost twice":       {2, 3, nil, nil, 2 * againAfter},
		"lost for good":    {100, 4, nil, context.DeadlineExceeded, allowed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), allowed)
				defer cancel()
				began, attempts := time.Now(), 0
				err := again(ctx, func(ctx context.Context) error {
					if attempts++; attempts > c.silent {
						return c.answer
					}
					<-ctx.Done()
					return ctx.Err()
				})
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.attempts, attempts)
				require.Equal(t, c.took, time.Since(began))
			})
		})
	}
}
