package fault_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Every pair of code and reason has a status that says whose fault it is, and nothing of the cause gets out.
func TestEveryFaultHasAStatus(t *testing.T) {
	for _, e := range fault.Catalog() {
		for _, code := range e.Codes {
			status, p := fault.HTTP(fault.New(code, e.Reason, "words").Because(errors.New("secret")), "c-1")
			require.NotEmpty(t, http.StatusText(status), "%s/%s", code, e.Reason)
			require.GreaterOrEqual(t, status, 400)
			require.Equal(t, code == fault.Internal, status == http.StatusInternalServerError && code != fault.Lost, "%s/%s", code, e.Reason)
			body, err := json.Marshal(p)
			require.NoError(t, err)
			require.NotContains(t, string(body), "secret")
			require.Equal(t, "c-1", p.Error.CorrelationID)
			if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
				require.Positive(t, p.Error.RetryAfterSeconds, "%s/%s", code, e.Reason)
			}
		}
	}
}

func TestProblemHoldsWhatAGRPCStatusHolds(t *testing.T) {
	status, p := fault.HTTP(fault.New(fault.InvalidArgument, fault.ReasonValidation, "no").
		WithFields(map[string]string{"b": "two", "a": "one"}).WithRetry(1500*time.Millisecond), "c")
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Equal(t, []fault.ProblemField{{Field: "a", Message: "one"}, {Field: "b", Message: "two"}}, p.Error.Fields)
	require.EqualValues(t, 2, p.Error.RetryAfterSeconds)
	status, p = fault.HTTP(errors.New("anything"), "c")
	require.Equal(t, http.StatusInternalServerError, status)
	require.NotContains(t, p.Error.Message, "anything")
}
