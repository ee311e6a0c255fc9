package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
)

func TestHTTPCreateStatusStop(t *testing.T) {
	w := newWeb(t)
	body := `{"desktop_os":"linux","cpus":"1","memory":"1Gi","isolation":"container","timeout_seconds":300}`
	first := w.send("POST", "/sandbox/create", body, "Idempotency-Key: k-1")
	made := first.is(t, 201)
	id, _ := made["sandbox_id"].(string)
	require.True(t, ids.Valid(id))
	require.Equal(t, "/api/v1/sandbox/"+id+"/status", first.header.Get("Location"))
	// The same meaning in other words is the same request.
	again := w.send("POST", "/sandbox/create", `{"timeout_seconds":300, "cpus":1.0,"memory":"1Gi"}`, "Idempotency-Key: k-1")
	require.Equal(t, string(first.body), string(again.body))
	w.send("POST", "/sandbox/create", `{"cpus":"2"}`, "Idempotency-Key: k-1").problem(t, 409, "idempotency_mismatch", "idempotency-key")
	w.until(func() bool { return w.send("GET", "/sandbox/"+id, "").is(t, 200)["status"] == "running" })
	status := w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)
	require.NotNil(t, status["startup_metrics"].(map[string]any)["total_ms"])
	require.Equal(t, made["expires_at"], status["expires_at"])
	for range 2 {
		stop := w.send("POST", "/sandbox/"+id+"/stop", "").is(t, 200)
		require.Equal(t, true, stop["success"])
		require.Equal(t, "terminated", stop["status"])
	}
	w.send("DELETE", "/sandbox/"+id, "").is(t, 200)
	gone := w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)
	require.Equal(t, "terminated", gone["status"])
	require.NotNil(t, gone["terminated_at"])
	require.Nil(t, gone["reclaimed_at"], "its workspace is kept for a time")
	w.send("POST", "/sandbox/"+id+"/execute", `{"command":["true"]}`).problem(t, 409, "sandbox_destroyed")
}

func TestHTTPListInPages(t *testing.T) {
	w := newWeb(t)
	w.views("acme", 5, time.Now())
	w.views("globex", 3, time.Now())
	for _, path := range []string{"/sandbox", "/sandbox/", "/sandboxes"} {
		seen := map[string]bool{}
		for cursor := ""; ; {
			page := w.send("GET", path+"?limit=2&cursor="+cursor, "").is(t, 200)
			for _, s := range page["sandboxes"].([]any) {
				seen[s.(map[string]any)["sandbox_id"].(string)] = true
			}
			if cursor, _ = page["next_cursor"].(string); cursor == "" {
				break
			}
		}
		require.Len(t, seen, 5)
	}
}

func TestHTTPExecute(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.peer.script("/bin/sh", func(x *execution) {
		x.write(chunks.Stdout, []byte("sandbox-ok"))
		x.write(chunks.Stderr, []byte{0xff, 0xfe})
		x.complete(3)
	})
	first := w.send("POST", "/sandbox/"+box+"/execute", `{"command":"anything","timeout":10000}`, "Idempotency-Key: e-1")
	x := first.is(t, 200)
	require.Equal(t, json.Number("3"), x["exit_code"], "a command that fails is no failed call")
	require.Equal(t, "known", x["outcome"])
	require.Equal(t, "exited", x["state"])
	require.Equal(t, "sandbox-ok", x["stdout"])
	require.Equal(t, "base64", x["stderr_encoding"])
	require.Equal(t, base64.StdEncoding.EncodeToString([]byte{0xff, 0xfe}), x["stderr"])
	require.Equal(t, false, x["truncated"])
	require.Len(t, x["receipt"].(map[string]any)["idempotency_key_sha256"], 64)
	id, _ := x["execution_id"].(string)
	require.Equal(t, id, first.header.Get("Sandtrail-Execution-Id"))
	// The same by its key, by its id, and repeated.
	for _, same := range []answer{
		w.send("POST", "/sandbox/"+box+"/execute", `{"command":"anything","timeout":10000}`, "Idempotency-Key: e-1"),
		w.send("GET", "/sandbox/"+box+"/executions/"+id, ""),
		w.send("GET", "/sandbox/"+box+"/executions?idempotency_key=e-1", ""),
	} {
		require.Equal(t, string(first.body), string(same.body))
	}
	out := w.send("GET", "/sandbox/"+box+"/executions/"+id+"/output?stream=stdout", "")
	require.Equal(t, "sandbox-ok", string(out.body))
	require.Equal(t, "\xff\xfe", string(w.send("GET", "/sandbox/"+box+"/executions/"+id+"/output?stream=stderr", "").body))
	w.send("GET", "/sandbox/"+box+"/executions?idempotency_key=e-2", "").problem(t, 404, "exec_not_found")
	w.send("POST", "/sandbox/"+box+"/execute", `{"command":"other"}`, "Idempotency-Key: e-1").problem(t, 409, "idempotency_mismatch", "idempotency-key")
}

func TestHTTPOutputOverTheCapIsTruncatedAndWholeElsewhere(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	part := strings.Repeat("x", 100<<10)
	w.peer.script("many", func(x *execution) {
		for range 12 {
			x.write(chunks.Stdout, []byte(part))
		}
		x.complete(0)
	})
	x := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["many"]}`).is(t, 200)
	require.Equal(t, true, x["truncated"])
	require.Len(t, x["stdout"], 1<<20)
	url, _ := x["receipt"].(map[string]any)["stdout"].(map[string]any)["url"].(string)
	require.Len(t, w.send("GET", strings.TrimPrefix(url, "/api/v1"), "").body, 12*len(part))
}

// An end that cannot be known is told as that, with no exit code.
func TestHTTPOutcomeUnknown(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.peer.script("lost", func(x *execution) {
		x.write(chunks.Stdout, []byte("half"))
		x.lose()
	})
	x := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["lost"]}`).is(t, 200)
	require.Equal(t, "unknown", x["outcome"])
	require.Equal(t, "exec_stream_lost", x["system_error"])
	require.Equal(t, "sandbox_lost", x["reason"])
	require.Nil(t, x["exit_code"])
	require.Equal(t, "half", x["stdout"])
	events := string(w.send("POST", "/sandbox/"+box+"/execute", `{"command":["lost"],"stream":true}`).body)
	require.Contains(t, events, `"type":"error"`)
	require.NotContains(t, events, `"exit_code":0`)
}

// Whoever repeats a command that still runs waits for the same end; a connection that is lost ends no command.
func TestHTTPRepeatsWaitForTheFirst(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	more := make(chan struct{})
	w.peer.script("long", func(x *execution) {
		<-more
		x.write(chunks.Stdout, []byte("end"))
		x.complete(0)
	})
	body := `{"command":["long"]}`
	answers := make([]answer, 8)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = w.send("POST", "/sandbox/"+box+"/execute", body, "Idempotency-Key: once") })
	}
	var running map[string]any
	w.until(func() bool {
		a := w.send("GET", "/sandbox/"+box+"/executions?idempotency_key=once", "")
		if a.status != http.StatusOK {
			return false
		}
		running = a.is(t, 200)
		return running["state"] == "running"
	})
	require.Nil(t, running["outcome"])
	close(more)
	all.Wait()
	for _, a := range answers {
		require.Equal(t, string(answers[0].body), string(a.body))
	}
	require.Len(t, w.peer.running, 1)
}

// Nothing that a program prints can be taken for an event.
func TestHTTPStreamOfEvents(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	fake := "\n\ndata: {\"type\":\"exit\",\"exit_code\":0}\n\n"
	w.peer.script("liar", func(x *execution) {
		x.write(chunks.Stdout, []byte(fake))
		x.write(chunks.Stderr, []byte("e"))
		x.complete(7)
	})
	a := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["liar"],"stream":true}`)
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	var types []string
	for _, block := range strings.Split(strings.TrimSuffix(string(a.body), "\n\n"), "\n\n") {
		_, data, ok := strings.Cut(block, "data: ")
		if !ok {
			require.Equal(t, ":", block)
			continue
		}
		var e struct {
			Type, Data string
			ExitCode   *int32 `json:"exit_code"`
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e))
		types = append(types, e.Type)
		switch e.Type {
		case "stdout":
			require.Equal(t, fake, e.Data)
		case "exit":
			require.EqualValues(t, 7, *e.ExitCode)
		}
	}
	require.Equal(t, []string{"stdout", "stderr", "exit", "done"}, types)
}

func TestHTTPFiles(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	data := strings.Repeat("\x00bytes\xff", 100_000)
	made := w.send("PUT", "/sandbox/"+box+"/files?path=a", data, "Content-Type: application/octet-stream").is(t, 200)
	require.Equal(t, json.Number(fmt.Sprint(len(data))), made["size"])
	require.Len(t, made["sha256"], 64)
	require.Equal(t, data, string(w.send("GET", "/sandbox/"+box+"/files?path=a", "").body))
	w.send("POST", "/sandbox/"+box+"/files", `{"files":[{"path":"b","content":"aGk="},{"path":"c","content":""}]}`).is(t, 200)
	require.Equal(t, "hi", string(w.send("GET", "/sandbox/"+box+"/files?path=b", "").body))
	require.Empty(t, w.send("GET", "/sandbox/"+box+"/files?path=c", "").body)
	w.send("GET", "/sandbox/"+box+"/files/list?path=", "").is(t, 200)
	w.send("GET", "/sandbox/"+box+"/files", "").problem(t, 422, "validation", "path")
	w.send("POST", "/sandbox/"+box+"/files", strings.Repeat(" ", 24<<20+1)).problem(t, 413, "too_large")
	w.send("POST", "/sandbox/"+box+"/files", `{"files":[{"path":"","content":"%"},{"content":"","more":1},7]}`).
		problem(t, 422, "validation", "files[0].path", "files[0].content", "files[1].path", "files[1].more", "files[2]")
}
