package turns_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/turns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A tenant that asks for everything gets all but one slot; another that comes then does not wait.
func TestATenantThatFloodsKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turns.New(3, 3, 0)
		var flood, ended atomic.Int64
		for range 50 {
			go func() {
				done, err := s.Take(t.Context(), "flood")
				if err != nil {
					return
				}
				flood.Add(1)
				<-time.After(time.Second)
				ended.Add(1)
				done()
			}()
		}
		synctest.Wait()
		require.EqualValues(t, 2, flood.Load())
		begin := time.Now()
		done, err := s.Take(t.Context(), "other")
		require.NoError(t, err)
		require.Zero(t, time.Since(begin))
		third := make(chan time.Duration)
		go func() {
			done, err := s.Take(t.Context(), "third")
			if err == nil {
				third <- time.Since(begin)
				done()
			}
		}()
		require.LessOrEqual(t, <-third, time.Second, "who has none goes before forty that wait longer")
		done()
		for ended.Load() < 50 {
			<-time.After(time.Second)
		}
	})
}

func TestWhoeverGivesUpTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turns.New(2, 1, 2)
		first, err := s.Take(t.Context(), "a")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		results := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.Take(ctx, "a")
				results <- err
			}()
		}
		synctest.Wait()
		_, err = s.Take(t.Context(), "a")
		require.ErrorIs(t, err, turns.ErrFull)
		require.ErrorIs(t, <-results, context.DeadlineExceeded)
		require.ErrorIs(t, <-results, context.DeadlineExceeded)
		first()
		first()
		again, err := s.Take(t.Context(), "a")
		require.NoError(t, err)
		again()
	})
}
