package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// moment reads a time of an answer.
func moment(t *testing.T, v any) time.Time {
	t.Helper()
	text, _ := v.(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return at
}

// More time is counted from the request on, never makes a life shorter, has a bound that is told, and is given once for a key.
func TestHTTPExtend(t *testing.T) {
	w := newWeb(t, func(c *app.Config) { c.MaxRuntime, c.Runtime = time.Hour, time.Hour })
	body := `{"timeout_seconds":300}`
	first := w.send("POST", "/sandbox/create", body, "Idempotency-Key: k")
	made := first.is(t, 201)
	id, _ := made["sandbox_id"].(string)
	path := "/sandbox/" + id + "/extend"
	expires := func() time.Time {
		return moment(t, w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)["expires_at"])
	}
	begin := expires()

	less := w.send("POST", path, `{"timeout_seconds":10}`).is(t, 200)
	require.Equal(t, begin, moment(t, less["expires_at"]), "nobody's time is made shorter")
	require.Equal(t, begin, expires())

	asked := time.Now()
	more := w.send("POST", path, `{"timeout_seconds":1000}`, "Idempotency-Key: more")
	until := moment(t, more.is(t, 200)["expires_at"])
	require.WithinDuration(t, asked.Add(1000*time.Second), until, patience)
	require.Equal(t, until, expires())
	later := w.send("POST", path, `{"timeout_seconds":2000}`).is(t, 200)
	require.Equal(t, moment(t, later["expires_at"]), expires())
	// Repeated with its key it is the same request: the first answer, and no more time.
	require.Equal(t, string(more.body), string(w.send("POST", path, `{"timeout_seconds":1000}`, "Idempotency-Key: more").body))
	require.Equal(t, moment(t, later["expires_at"]), expires())
	w.send("POST", path, `{"timeout_seconds":1001}`, "Idempotency-Key: more").problem(t, 409, "idempotency_mismatch", "idempotency-key")
	require.Equal(t, string(first.body), string(w.send("POST", "/sandbox/create", body, "Idempotency-Key: k").body), "a create is answered as it was")

	w.send("POST", path, `{"timeout_seconds":3601}`).problem(t, 422, "validation", "timeout_seconds")
	for _, wrong := range []string{`{}`, `{"timeout_seconds":0}`, `{"timeout_seconds":"300"}`, `{"timeout_seconds":null}`} {
		w.send("POST", path, wrong).problem(t, 422, "validation", "timeout_seconds")
	}
	w.send("POST", path, `{"timeout_seconds":1,"for":"ever"}`).problem(t, 422, "validation", "for")
	w.send("POST", "/sandbox/"+ids.New()+"/extend", body).problem(t, 404, "sandbox_not_found")
	w.with("ApiKey "+secret("bob")).send("POST", path, body).problem(t, 404, "sandbox_not_found")

	w.send("POST", "/sandbox/"+id+"/stop", "").is(t, 200)
	w.send("POST", path, body).problem(t, 409, "sandbox_destroyed")
	require.Equal(t, string(more.body), string(w.send("POST", path, `{"timeout_seconds":1000}`, "Idempotency-Key: more").body))
}

// A life that is over is not made longer by who comes a moment too late.
func TestHTTPExtendComesTooLate(t *testing.T) {
	w := newWeb(t)
	id, _ := w.send("POST", "/sandbox/create", `{"timeout_seconds":1}`).is(t, 201)["sandbox_id"].(string)
	over := moment(t, w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)["expires_at"])
	w.until(func() bool { return time.Now().After(over) })
	w.send("POST", "/sandbox/"+id+"/extend", `{"timeout_seconds":300}`).problem(t, 409, "sandbox_expired")
}
