package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// background starts a detached command in demo, and gives its id once it has begun.
func (b *boxes) background(code string, more map[string]any) (id string) {
	b.t.Helper()
	body := map[string]any{"code": code, "detach": true}
	for k, v := range more {
		body[k] = v
	}
	a := b.json("POST", "/sandboxes/execute?sandbox=demo", body)
	x := a.is(b.t, 202)
	require.Equal(b.t, "PENDING", x["state"], "%s", a.body)
	require.Equal(b.t, x["execution_id"], a.header.Get("Sandtrail-Execution-Id"))
	id = x["execution_id"].(string)
	b.until(func() bool { return b.send("GET", b.on(id, ""), nil).is(b.t, 200)["state"] != "PENDING" })
	return id
}

func (b *boxes) on(id, below string) string { return "/sandboxes/demo/executions/" + id + below }

// listed are the ids of a list.
func (b *boxes) listed(query string) (all []string) {
	b.t.Helper()
	for _, x := range b.send("GET", "/sandboxes/demo/executions"+query, nil).is(b.t, 200)["executions"].([]any) {
		all = append(all, x.(map[string]any)["execution_id"].(string))
	}
	return all
}

func TestCommandsInTheBackgroundAreListed(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	require.Empty(t, w.listed("?all=true"))
	w.peer.script("bash", func(*execution) {})
	w.peer.script("python3", func(x *execution) { x.complete(3) })
	w.peer.script("node", func(x *execution) { x.lose() })
	first := w.background("server", map[string]any{"keep_stdin": true})
	var ended []string
	for _, language := range []string{"python", "python", "node"} {
		a := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "x", "language": language})
		ended = append(ended, a.header.Get("Sandtrail-Execution-Id"))
	}
	last := w.background(strings.Repeat("long ", 1000), nil)

	require.Equal(t, []string{last, first}, w.listed(""), "newest first")
	require.Equal(t, []string{last, first}, w.listed("?all=false&limit=1"))
	require.Equal(t, []string{last, ended[2], ended[1], ended[0], first}, w.listed("?all=true"))
	require.Equal(t, []string{last, ended[2], first}, w.listed("?all=true&limit=1"))

	get := func(id string) map[string]any { return w.send("GET", w.on(id, ""), nil).is(t, 200) }
	x := get(first)
	require.Equal(t, []any{"RUNNING", "command", true, true, []any{"bash", "-c", "server"}}, []any{x["state"], x["kind"], x["detach"], x["keep_stdin"], x["command"]})
	require.NotEmpty(t, x["started_at"])
	require.NotContains(t, x, "exit_code")
	require.NotContains(t, x, "ended_at")
	x = get(ended[0])
	require.Equal(t, []any{"TERMINATED", json.Number("3"), "exited"}, []any{x["state"], x["exit_code"], x["reason"]})
	require.NotEmpty(t, x["ended_at"])
	x = get(ended[2])
	require.Equal(t, "LOST", x["state"])
	require.NotContains(t, x, "exit_code", "none is made up")
	command := fmt.Sprint(get(last)["command"])
	require.Less(t, len(command), 1100)
	require.Contains(t, command, "long long")

	for _, query := range []string{"?all=maybe", "?limit=0", "?limit=1001", "?all=true&limit=x"} {
		w.send("GET", "/sandboxes/demo/executions"+query, nil).refused(t, 422, "validation")
	}
	w.send("GET", "/sandboxes/none/executions", nil).refused(t, 404, "sandbox_not_found")
	w.send("GET", w.on("a-name", ""), nil).refused(t, 404, "exec_not_found")
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "x", "keep_stdin": true}).refused(t, 422, "validation")
	w.json("POST", "/sandboxes/stream?sandbox=demo", map[string]any{"code": "x", "detach": true}).refused(t, 422, "validation")
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": strings.Repeat("x", 64<<10+1), "detach": true, "keep_stdin": true}).refused(t, 422, "validation")

	// The same key starts one command.
	send := func() string {
		return string(w.send("POST", "/sandboxes/execute?sandbox=demo", strings.NewReader(`{"code":"x","detach":true}`), "Idempotency-Key: one").body)
	}
	once := send()
	require.Contains(t, once, "execution_id")
	require.Equal(t, once, send())
	require.Len(t, w.listed(""), 3)
}

func TestSignalsByNameAndNumber(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("bash", func(*execution) {})
	id := w.background("server", nil)
	var got []int32
	w.peer.set(func() { w.peer.onSignal = func(_ *execution, n int32) { got = append(got, n) } })
	send := func(body string) answer { return w.send("POST", w.on(id, "/signal"), strings.NewReader(body)) }
	var want []int32
	for body, n := range map[string]int32{
		`"TERM"`: 15, `"SIGINT"`: 2, `"kill"`: 9, `"HUP"`: 1, `"USR1"`: 10, `"sigusr2"`: 12, `"WINCH"`: 28, `"SYS"`: 31, `15`: 15, `"9"`: 9, `64`: 64,
	} {
		want = append(want, n)
		require.Equal(t, "RUNNING", send(`{"signal":`+body+`}`).is(t, 200)["state"], body)
	}
	w.peer.set(func() { require.Equal(t, want, got) })
	for _, body := range []string{``, `{}`, `{"signal":0}`, `{"signal":65}`, `{"signal":-9}`, `{"signal":1.5}`, `{"signal":"BANG"}`, `{"signal":""}`, `{"signal":null}`, `{"signal":["TERM"]}`, `{"signal":"SIGSIGTERM"}`} {
		send(body).refused(t, 422, "validation")
	}
	w.peer.set(func() {
		require.Len(t, got, len(want), "what is no signal is not sent")
		w.peer.onSignal = func(x *execution, n int32) {
			w.peer.wg.Go(func() {
				x.end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonSignaled, ExitCode: 128 + n, Signal: n})
			})
		}
	})
	send(`{"signal":"TERM"}`).is(t, 200)
	w.until(func() bool { return w.send("GET", w.on(id, ""), nil).is(t, 200)["state"] == "TERMINATED" })
	send(`{"signal":"TERM"}`).refused(t, 409, "illegal_state")

	id = w.background("server", nil)
	for range 2 {
		x := w.send("POST", w.on(id, "/cancel"), nil).is(t, 200)
		require.Equal(t, []any{"TERMINATED", "cancelled"}, []any{x["state"], x["reason"]})
	}
}

func TestInputOfACommandInTheBackground(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("bash", func(*execution) {})
	id := w.background("cat", map[string]any{"keep_stdin": true, "stdin": ""})
	write := func(query, data string) answer {
		return w.send("POST", w.on(id, "/stdin"+query), strings.NewReader(data))
	}
	taken := func(a answer) (any, any) { v := a.is(t, 200); return v["offset"], v["closed"] }
	for range 2 { // a repeat adds nothing
		offset, closed := taken(write("?offset=0", "hello, \x00\xff"))
		require.Equal(t, []any{json.Number("9"), false}, []any{offset, closed})
	}
	offset, _ := taken(write("", "wor"))
	require.Equal(t, json.Number("12"), offset, "without an offset it stands behind the rest")
	write("?offset=20", "gap").refused(t, 422, "validation")
	write("?offset=-1", "x").refused(t, 422, "validation")
	write("?close=maybe", "x").refused(t, 422, "validation")
	write("", strings.Repeat("x", 512<<10+1)).refused(t, 413, "too_large")
	offset, closed := taken(write("?close=true", "ld"))
	require.Equal(t, []any{json.Number("14"), true}, []any{offset, closed})
	write("?offset=14", "late").refused(t, 409, "illegal_state")
	w.peer.set(func() { require.Equal(t, "hello, \x00\xffworld", string(w.peer.inputs[id])) })
	w.send("POST", w.on(id, "/cancel"), nil).is(t, 200)
	write("?offset=14", "late").refused(t, 409, "illegal_state")
	id = w.background("other", nil)
	write("?offset=0", "x").refused(t, 409, "illegal_state")
}

// streamed reads a stream of events of base64: the bytes of stdout, the last id, and what the last event was.
func streamed(t *testing.T, body []byte) (out, last, end string) {
	t.Helper()
	event := ""
	for l := range strings.Lines(string(body)) {
		field, value, _ := strings.Cut(strings.TrimSuffix(l, "\n"), ": ")
		switch {
		case field == "id":
			last = value
		case field == "event":
			event = value
		case field == "data" && event == "stdout":
			data, err := base64.StdEncoding.DecodeString(value)
			require.NoError(t, err)
			out += string(data)
		case field == "data":
			end = event + " " + value
		}
	}
	return out, last, end
}

// Who attaches gets each byte once, from wherever he comes back: while it runs, and when it is over.
func TestAttachToACommandInTheBackground(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	const n = 20
	more := make(chan struct{})
	w.peer.script("bash", func(x *execution) {
		for i := range n {
			if i == n/2 {
				x.waits(more)
			}
			x.write(chunks.Stdout, []byte{byte(i), 0xff})
		}
		x.complete(7)
	})
	var want strings.Builder
	for i := range n {
		want.Write([]byte{byte(i), 0xff})
	}
	id := w.background("server", nil)
	at := func(query string) string { return w.on(id, "/stream?framing=base64"+query) }
	followed := make(chan answer, 1)
	go func() { followed <- w.send("GET", at(""), nil) }()
	close(more)
	all := <-followed
	require.Equal(t, 200, all.status, "%s", all.body)
	require.Equal(t, "text/event-stream; charset=utf-8", all.header.Get("Content-Type"))
	out, last, end := streamed(t, all.body)
	require.Equal(t, []string{want.String(), fmt.Sprint(n), "exit 7"}, []string{out, last, end})
	for after := range n + 2 {
		for _, a := range []answer{
			w.send("GET", at(fmt.Sprintf("&after=%d", after)), nil), w.send("GET", at(""), nil, fmt.Sprintf("Last-Event-ID: %d", after)),
		} {
			require.Equal(t, 200, a.status)
			out, _, end := streamed(t, a.body)
			require.Equal(t, []string{want.String()[2*min(after, n):], "exit 7"}, []string{out, end}, "behind %d", after)
		}
	}
	for _, query := range []string{"&after=x", "&after=-1", "&after=" + fmt.Sprint(uint64(math.MaxUint64))} {
		w.send("GET", at(query), nil).refused(t, 422, "validation")
	}

	// In text an id stands behind what is whole only, so that no character is cut for who comes back.
	w.peer.script("bash", func(x *execution) {
		for _, b := range []byte("a€b") {
			x.write(chunks.Stdout, []byte{b})
		}
		x.lose()
	})
	id = w.background("euro", nil)
	w.until(func() bool { return w.send("GET", w.on(id, ""), nil).is(t, 200)["state"] == "LOST" })
	a := w.send("GET", w.on(id, "/stream"), nil)
	text := string(a.body)
	require.Contains(t, text, "id: 1\nevent: stdout\ndata: a\n")
	require.Contains(t, text, "id: 4\nevent: stdout\ndata: €\n")
	require.NotContains(t, text, "id: 2\n")
	require.Contains(t, text, "event: error\n", "what is not known is no exit")
	require.NotContains(t, text, "event: exit")
	a = w.send("GET", w.on(id, "/stream?after=5"), nil)
	require.Equal(t, 200, a.status)
	require.Contains(t, string(a.body), "event: error\n")
}

// Another tenant's execs are answered like none, by every route.
func TestForeignExecutions(t *testing.T) {
	w := newBoxes(t, twoTenants)
	alice, bob := w.with("Authorization: Bearer "+secret("alice")), w.with("Authorization: Bearer "+secret("bob"))
	theirs, _ := bob.made("demo")["id"].(string)
	alice.made("demo")
	w.peer.script("bash", func(*execution) {})
	id := bob.background("server", map[string]any{"keep_stdin": true})
	sent := 0
	w.peer.set(func() { w.peer.onSignal = func(*execution, int32) { sent++ } })
	for call, body := range map[string]string{
		"GET /": "", "GET /stream": "", "POST /stdin": "x", "POST /stdin?offset=0": "x", "POST /signal": `{"signal":"KILL"}`, "POST /cancel": "",
	} {
		method, below, _ := strings.Cut(call, " ")
		ask := func(box, exec string) answer {
			var in io.Reader
			if body != "" {
				in = strings.NewReader(body)
			}
			return alice.send(method, "/sandboxes/"+box+"/executions/"+exec+strings.TrimSuffix(below, "/"), in)
		}
		none, noBox := ids.New(), ids.New()
		a, b := ask("demo", none), ask("demo", id)
		require.Equal(t, 404, a.status, "%s: %s", call, a.body)
		require.Equal(t, learned(a, none), learned(b, id), call)
		a, b = ask(noBox, none), ask(theirs, id)
		require.Equal(t, 404, a.status, call)
		require.Equal(t, learned(a, none, noBox), learned(b, id, theirs), call)
	}
	alice.send("GET", "/sandboxes/"+theirs+"/executions?all=true", nil).refused(t, 404, "sandbox_not_found")
	require.Empty(t, alice.listed("?all=true"))
	require.Equal(t, "RUNNING", bob.send("GET", bob.on(id, ""), nil).is(t, 200)["state"])
	w.peer.set(func() {
		require.Zero(t, sent)
		require.Empty(t, w.peer.inputs[id])
	})
}
