package e2e

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// started is a command that runs until the file that its name says is there, asked for under an idempotency key.
type started struct {
	controller
	key, box, name string
	answer         chan string
}

const waiting = `{"command":"echo begun; while [ ! -e NAME ]; do sleep 0.1; done; exit 7","timeout":300000}`

func (s started) body() string { return strings.ReplaceAll(waiting, "NAME", s.name) }

// send makes the request once and gives its answer, or why there was none.
func (s started) send() string {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/api/v1/sandbox/"+s.box+"/execute", strings.NewReader(s.body()))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Authorization", "ApiKey "+s.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", s.name)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func (s started) receipt() map[string]any {
	status, x := s.ask(s.key, "GET", "/"+s.box+"/executions?idempotency_key="+s.name, "")
	if status != 200 {
		return nil
	}
	return x
}

// begin starts it and returns once it runs.
func (c controller) begin(key, box, name string) started {
	c.t.Helper()
	s := started{controller: c, key: key, box: box, name: name, answer: make(chan string, 1)}
	go func() { s.answer <- s.send() }()
	c.until(func() bool { return s.receipt()["state"] == "running" })
	return s
}

// release lets the command end.
func (s started) release() {
	s.t.Helper()
	status, _ := s.ask(s.key, "POST", "/"+s.box+"/execute", `{"command":"touch `+s.name+`"}`)
	require.Equal(s.t, 200, status)
}

// known checks the end, and that whoever asks gets the same answer.
func (s started) known(answer string) {
	s.t.Helper()
	require.Contains(s.t, answer, `"outcome":"known"`)
	require.Contains(s.t, answer, `"exit_code":7`)
	require.Contains(s.t, answer, `"stdout":"begun\n"`)
	require.Equal(s.t, answer, s.send())
	require.JSONEq(s.t, answer, toJSON(s.t, s.receipt()))
}

// What becomes of a command is known, or is told to be unknown and why, whichever part is killed while it runs.
func TestHTTPOutcomesWhilePartsAreKilled(t *testing.T) {
	needsHost(t)
	s := stack.Processes(t)
	c := controller{s, t, "http://" + s.HTTP}
	var made map[string]any
	c.operate(&made, "tenant", "create", "acme")
	key := c.key("create,inspect,execute,stop").Key
	c.until(func() bool { status, _ := c.ask(key, "GET", "", ""); return status == 200 })
	create := func() string {
		status, box := c.ask(key, "POST", "/create", `{"timeout_seconds":600}`)
		require.Equal(t, 201, status, "%v", box)
		id, _ := box["sandbox_id"].(string)
		status, _ = c.ask(key, "POST", "/"+id+"/execute", `{"command":"true"}`)
		require.Equal(t, 200, status)
		return id
	}
	box := create()

	t.Run("exec", func(t *testing.T) {
		x := c.begin(key, box, "exec-killed")
		s.Kill("exec")
		s.Respawn("exec")
		x.release()
		x.known(<-x.answer)
	})
	t.Run("gateway", func(t *testing.T) {
		x := c.begin(key, box, "gateway-killed")
		s.Kill("gateway")
		require.NotContains(t, <-x.answer, "outcome")
		s.Respawn("gateway")
		again := make(chan string, 1)
		go func() { again <- x.send() }()
		x.release()
		x.known(<-again)
	})
	t.Run("store", func(t *testing.T) {
		x := c.begin(key, box, "store-full")
		nc, err := nats.Connect(s.NATS)
		require.NoError(t, err)
		defer nc.Close()
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		stream, err := js.Stream(t.Context(), topology.StreamEvents)
		require.NoError(t, err)
		// What ends it comes from a child that an exec left behind: once the log is full no exec can be started.
		full := stream.CachedInfo().Config
		whole := full.MaxBytes
		_, child := c.ask(key, "POST", "/"+box+"/execute", `{"command":"(sleep 3; touch store-full) >/dev/null 2>&1 &"}`)
		require.Equal(t, "known", child["outcome"])
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		full.MaxBytes = int64(info.State.Bytes) //nolint:gosec // a test's log is small
		_, err = js.UpdateStream(t.Context(), full)
		require.NoError(t, err)
		answer := <-x.answer
		require.Contains(t, answer, `"outcome":"unknown"`)
		require.Contains(t, answer, `"system_error":"record_pending"`)
		require.Contains(t, answer, `"exit_code":null`)
		full.MaxBytes = whole
		_, err = js.UpdateStream(t.Context(), full)
		require.NoError(t, err)
		c.until(func() bool { return x.receipt()["outcome"] == "known" })
		x.known(x.send())
	})
	t.Run("sandbox", func(t *testing.T) {
		other := create()
		x := c.begin(key, other, "sandbox-killed")
		require.NoError(t, syscall.Kill(keeperOf(t, s, other), syscall.SIGKILL))
		answer := <-x.answer
		require.Contains(t, answer, `"outcome":"unknown"`)
		require.Contains(t, answer, `"exit_code":null`)
		require.Contains(t, answer, `"system_error":"exec_stream_lost"`)
		require.Contains(t, answer, `"stdout":"begun\n"`)
		require.Equal(t, answer, x.send(), "nothing is run again")
		require.JSONEq(t, answer, toJSON(t, x.receipt()))
	})
}
