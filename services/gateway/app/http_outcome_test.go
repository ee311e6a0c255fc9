package app_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// pend tells the readers of an exec, until release is closed, that its end cannot be recorded.
func (x *execution) pend(release <-chan struct{}) {
	beat := time.NewTicker(20 * time.Millisecond)
	defer beat.Stop()
	for {
		_ = x.p.nc.Publish(subject.Readers(x.agg.Tenant, x.agg.Sandbox, x.agg.ID), []byte(sandbox.RecordPending))
		select {
		case <-release:
			return
		case <-beat.C:
		}
	}
}

// An end that was seen and cannot be recorded is told as that, and as it was once it is.
func TestHTTPRecordPending(t *testing.T) {
	w := newWeb(t, func(c *app.Config) { c.PendingWait = 200 * time.Millisecond })
	box := w.box()
	release := make(chan struct{})
	w.peer.script("stuck", func(x *execution) {
		x.write(chunks.Stdout, []byte("out"))
		x.pend(release)
		x.complete(5)
	})
	body, path := `{"command":["stuck"]}`, "/sandbox/"+box+"/execute"
	x := w.send("POST", path, body, "Idempotency-Key: stuck").is(t, 200)
	require.Equal(t, "unknown", x["outcome"])
	require.Equal(t, "unknown", x["state"])
	require.Equal(t, "record_pending", x["system_error"])
	require.Equal(t, "result_unrecorded", x["reason"])
	require.Nil(t, x["exit_code"], "nobody makes one up")
	require.Equal(t, "out", x["stdout"])
	// Repeated it is the same, and over a stream too, which ends.
	require.Equal(t, "record_pending", w.send("POST", path, body, "Idempotency-Key: stuck").is(t, 200)["system_error"])
	events := string(w.send("POST", path, `{"command":["stuck"],"stream":true}`).body)
	require.Contains(t, events, `"system_error":"record_pending"`)
	require.NotContains(t, events, `"exit_code":5`)
	require.Contains(t, events, `"type":"done"`)
	close(release)
	known := w.known(box, "stuck")
	require.Equal(t, json.Number("5"), known["exit_code"])
	require.Equal(t, x["execution_id"], known["execution_id"])
	require.JSONEq(t, string(w.send("GET", "/sandbox/"+box+"/executions?idempotency_key=stuck", "").body),
		string(w.send("POST", path, body, "Idempotency-Key: stuck").body))
}

// known waits until the receipt of a key has its end.
func (w *web) known(box, key string) (x map[string]any) {
	w.t.Helper()
	w.until(func() bool {
		a := w.send("GET", "/sandbox/"+box+"/executions?idempotency_key="+key, "")
		if a.status != 200 {
			return false
		}
		x = a.is(w.t, 200)
		return x["outcome"] == "known"
	})
	return x
}

// What takes a moment to be recorded is waited for.
func TestHTTPAnEndThatIsRecordedLateIsKnown(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.peer.script("late", func(x *execution) {
		release := make(chan struct{})
		timer := time.AfterFunc(300*time.Millisecond, func() { close(release) })
		defer timer.Stop()
		x.pend(release)
		x.complete(6)
	})
	x := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["late"]}`).is(t, 200)
	require.Equal(t, "known", x["outcome"])
	require.Equal(t, json.Number("6"), x["exit_code"])
}

// Where the log is lost from sight the answer says so, without an exit code, and the receipt has the truth once it can be read.
func TestHTTPStreamLostThenKnown(t *testing.T) {
	w := newWeb(t, func(c *app.Config) { c.OutagePatience = 300 * time.Millisecond })
	box := w.box()
	wrote, release := make(chan struct{}), make(chan struct{})
	w.peer.script("half", func(x *execution) {
		x.write(chunks.Stdout, []byte("half"))
		close(wrote)
		<-release
		x.complete(4)
	})
	done := make(chan answer, 1)
	go func() {
		done <- w.send("POST", "/sandbox/"+box+"/execute", `{"command":["half"]}`, "Idempotency-Key: half")
	}()
	<-wrote
	w.until(func() bool {
		a := w.send("GET", "/sandbox/"+box+"/executions?idempotency_key=half", "")
		return a.status == 200 && strings.Contains(string(a.body), `"running"`)
	})
	w.Stop()
	x := (<-done).is(t, 200)
	require.Equal(t, "unknown", x["outcome"])
	require.Equal(t, "exec_stream_lost", x["system_error"])
	require.Nil(t, x["exit_code"])
	w.Resume()
	w.until(func() bool { return w.send("GET", "/sandbox/"+box+"/status", "").status == 200 })
	close(release)
	known := w.known(box, "half")
	require.Equal(t, json.Number("4"), known["exit_code"])
	require.Equal(t, x["execution_id"], known["execution_id"])
	require.Equal(t, "half", known["stdout"])
}
