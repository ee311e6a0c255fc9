package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// shells stand for the shells of sessions: they speak as real ones do, and do with a command what its first word says. How real ones take it
// is tested with them.
type shells struct {
	*boxes
	mu sync.Mutex
	// commands that were run, in order; started are the execs that are shells.
	commands []string
	started  []*execution
	// interrupted has one value for each interrupt; on lets a command that waits go on.
	interrupted chan string
	on          chan struct{}
}

func newShells(t *testing.T, keys map[string]string) *shells {
	t.Helper()
	s := &shells{boxes: newBoxes(t, keys), interrupted: make(chan string, 16), on: make(chan struct{})}
	s.peer.script("sh", func(x *execution) {
		args := x.cmd.GetStart().GetSpec().GetArgs()
		if len(args) > 2 && args[2] == "sandtrail-session" {
			s.mu.Lock()
			s.started = append(s.started, x)
			s.mu.Unlock()
			s.shell(x)
			return
		}
		s.interrupted <- strings.Join(args[3:], " ")
		x.complete(0)
	})
	return s
}

func (s *shells) ran() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.commands...)
}

// shell reads lines until it ends.
func (s *shells) shell(x *execution) {
	done, command := 0, ""
	code, open := 0, ""
	frame := func(format string, args ...any) {
		x.write(chunks.Stdout, []byte(fmt.Sprintf(format, args...)))
	}
	for {
		typed := x.typed()
		line, _, ok := strings.Cut(typed[done:], "\n")
		if !ok {
			if x.state().Over() || s.t.Context().Err() != nil {
				return
			}
			<-time.After(tick)
			continue
		}
		done += len(line) + 1
		f := strings.Fields(line)
		switch {
		case len(f) == 4 && f[1] == "there":
			x.write(chunks.Stderr, []byte("\x1e"+f[2]+"[\x1e"+f[2]+"]\n"))
			frame("\x1e%s[\x1e%s]%d 77 /workspace\n", f[2], f[2], code)
		case len(f) == 5 && f[1] == "ask":
			command, open = decoded(f[3]), f[2]
			x.write(chunks.Stderr, []byte("\x1e"+open+"["))
			frame("\x1e%s[", open)
		case line == "st_eval_0":
			s.mu.Lock()
			s.commands = append(s.commands, command)
			s.mu.Unlock()
			var ended bool
			if code, ended = s.do(x, command); ended {
				x.complete(int32(code)) //nolint:gosec // of a test
				return
			}
		case len(f) == 4 && f[1] == "told":
			x.write(chunks.Stderr, []byte("\x1e"+open+"]\n"))
			frame("\x1e%s]%d 77 /workspace\n", open, code)
		}
	}
}

func decoded(word string) string {
	parts := strings.Split(word, `\\0`)
	for i, p := range parts[1:] {
		n, _ := strconv.ParseUint(p[:3], 8, 8)
		parts[i+1] = string([]byte{byte(n)}) + p[3:]
	}
	return strings.TrimSuffix(strings.Join(parts, ""), "\n")
}

// do runs a command; true: the shell ends with it.
func (s *shells) do(x *execution, command string) (code int, ended bool) {
	word, rest, _ := strings.Cut(command, " ")
	switch word {
	case "say":
		x.write(chunks.Stdout, []byte(rest+"\n"))
	case "both":
		x.write(chunks.Stdout, []byte("\x1eo\xff"))
		x.write(chunks.Stderr, []byte("e"))
		return 4, false
	case "big":
		for range 24 {
			x.write(chunks.Stdout, make([]byte, 100<<10))
		}
	case "exit":
		code, _ = strconv.Atoi(rest)
		return code, true
	case "wait":
		x.waits(s.on)
	case "hang":
		x.write(chunks.Stdout, []byte("so far"))
		select {
		case <-s.interrupted:
		case <-s.t.Context().Done():
		}
		return 130, false
	case "deaf":
		for !x.state().Over() && s.t.Context().Err() == nil {
			<-time.After(tick)
		}
	}
	return 0, false
}

func (s *shells) command(session, command string, more ...any) answer {
	s.t.Helper()
	body := map[string]any{"command": command}
	for i := 0; i < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return s.json("POST", "/sandboxes/demo/session/"+session+"/exec", body)
}

func (s *shells) session(body any) map[string]any {
	s.t.Helper()
	return s.json("POST", "/sandboxes/demo/session", body).is(s.t, 201)
}

func TestSessionsFromCreateToDelete(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	require.Empty(t, w.send("GET", "/sandboxes/demo/session", nil).is(t, 200)["sessions"])
	made := w.send("POST", "/sandboxes/demo/session", nil).is(t, 201)
	id := made["session_id"].(string)
	require.True(t, ids.Valid(id))
	require.Equal(t, []any{id, "RUNNING"}, []any{made["execution_id"], made["state"]})
	spec := w.started[0].cmd.GetStart().GetSpec()
	require.Equal(t, []any{true, true, true}, []any{spec.GetDetach(), spec.GetKeepStdin(), spec.GetStopAtOutputLimit()})

	v := w.command(id, "say hello").is(t, 200)
	require.Equal(t, []any{"hello\n", json.Number("0"), "exited", false, "/workspace", id}, []any{v["output"], v["exit_code"], v["reason"], v["session_ended"], v["cwd"], v["session_id"]})
	require.Regexp(t, `^[0-9a-f]{32}$`, v["cmd_id"])
	next := w.command(id, "both").is(t, 200)
	require.NotEqual(t, v["cmd_id"], next["cmd_id"])
	require.Equal(t, []any{"\x1eo\uFFFDe", "\x1eo\uFFFD", "e", "Hm//", json.Number("4")}, []any{next["output"], next["stdout"], next["stderr"], next["stdout_base64"], next["exit_code"]})
	require.Equal(t, []string{"say hello", "both"}, w.ran())

	other := w.session(map[string]any{"session_id": "build.1", "cwd": "/workspace", "env": map[string]string{"A": "b"}})
	require.Equal(t, "build.1", other["session_id"])
	require.NotEqual(t, "build.1", other["execution_id"])
	require.Equal(t, "x\n", w.command("build.1", "say x").is(t, 200)["output"])
	w.json("POST", "/sandboxes/demo/session", map[string]any{"session_id": "build.1"}).refused(t, 409, "name_taken")
	list := w.send("GET", "/sandboxes/demo/session", nil).is(t, 200)["sessions"].([]any)
	require.Len(t, list, 2)
	require.Equal(t, other["execution_id"], list[1].(map[string]any)["execution_id"])
	require.Equal(t, "RUNNING", w.send("GET", "/sandboxes/demo/session/build.1", nil).is(t, 200)["state"])

	require.Equal(t, "TERMINATED", w.send("DELETE", "/sandboxes/demo/session/build.1", nil).is(t, 200)["state"])
	require.Equal(t, "cancelled", w.send("DELETE", "/sandboxes/demo/session/build.1", nil).is(t, 200)["reason"], "once more is no error")
	require.Len(t, w.send("GET", "/sandboxes/demo/session", nil).is(t, 200)["sessions"], 1)
	require.Contains(t, w.command("build.1", "say x").refused(t, 409, "illegal_state"), "cancelled")
	w.session(map[string]any{"session_id": "build.1"})
	require.Equal(t, "y\n", w.command("build.1", "say y").is(t, 200)["output"], "a name is free again, and the newest has it")
}

// A shell that ends with a command tells its exit code, and takes no other.
func TestASessionThatEnds(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	id := w.session(nil)["session_id"].(string)
	v := w.command(id, "exit 3").is(t, 200)
	require.Equal(t, []any{json.Number("3"), "exited", true}, []any{v["exit_code"], v["reason"], v["session_ended"]})
	require.Contains(t, w.command(id, "say x").refused(t, 409, "illegal_state"), "exit code 3")
	got := w.send("GET", "/sandboxes/demo/session/"+id, nil).is(t, 200)
	require.Equal(t, []any{"TERMINATED", json.Number("3")}, []any{got["state"], got["exit_code"]})

	w.peer.script("sh", func(x *execution) {
		x.end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonStartFailed, ExitCode: 127, Message: "no such program"})
	})
	require.Contains(t, w.send("POST", "/sandboxes/demo/session", nil).refused(t, 409, "start_failed"), "no such program")
}

// What takes too long is interrupted and the session goes on; a shell that hears no interrupt is ended.
func TestCommandsOfASessionThatTakeTooLong(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	id := w.session(nil)["session_id"].(string)
	v := w.command(id, "hang", "timeout", 0.2).is(t, 200)
	require.Equal(t, []any{"so far", json.Number("124"), "timed_out", false}, []any{v["output"], v["exit_code"], v["reason"], v["session_ended"]})
	require.Equal(t, "x\n", w.command(id, "say x").is(t, 200)["output"])
	v = w.command(id, "deaf", "timeout", 0.2).is(t, 200)
	require.Equal(t, []any{json.Number("124"), "timed_out", true}, []any{v["exit_code"], v["reason"], v["session_ended"]})
	for _, how := range []string{"77 first", "77 first", "77 last"} {
		require.Equal(t, "sh "+how, "sh "+<-w.interrupted)
	}
	w.command(id, "say x").refused(t, 409, "illegal_state")
}

// One command at a time, by whichever gateway; the other is told so, and nothing of it is run.
func TestACommandOfASessionAtATime(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	id := w.session(nil)["session_id"].(string)
	ctx, kill := context.WithCancel(t.Context())
	a, _ := w.gateway(w.connect())
	gone := w.at(ctx, "http://"+a.HTTP(), "/api/v1/sandboxes/demo/session/"+id+"/exec", `{"command":"wait"}`)
	w.until(func() bool { return len(w.ran()) == 1 })
	require.Contains(t, w.command(id, "say no").refused(t, 409, "concurrent_change"), "somebody else is at it")
	kill() // a client that leaves does not end its command
	require.Zero(t, <-gone)
	w.command(id, "say no").refused(t, 409, "concurrent_change")
	close(w.on)
	w.until(func() bool { return w.command(id, "say yes").status == 200 })
	require.Equal(t, []string{"wait", "say yes"}, w.ran())
}

// at posts to a gateway and brings the status of the answer, 0 without one.
func (s *shells) at(ctx context.Context, base, path, body string) <-chan int {
	done := make(chan int, 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, strings.NewReader(body))
	require.NoError(s.t, err)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		if err != nil {
			done <- 0
			return
		}
		_ = res.Body.Close()
		done <- res.StatusCode
	}()
	return done
}

// A gateway that is stopped in the middle of a command leaves it to the shell: the next one says that the session is at it, and goes on behind it.
func TestAGatewayStopsInTheMiddleOfACommand(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	id := w.session(nil)["session_id"].(string)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	base, ended := w.passing(ctx)
	done := w.at(t.Context(), base, "/api/v1/sandboxes/demo/session/"+id+"/exec", `{"command":"wait"}`)
	w.until(func() bool { return len(w.ran()) == 1 })
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, http.StatusServiceUnavailable, <-done)
	require.Contains(t, w.command(id, "say no").refused(t, 409, "concurrent_change"), "still at a command")
	close(w.on)
	w.until(func() bool { return w.command(id, "say yes").status == 200 })
	require.Equal(t, []string{"wait", "say yes"}, w.ran())
}

// passing is a gateway that ends with ctx.
func (s *shells) passing(ctx context.Context) (base string, ended <-chan error) {
	s.t.Helper()
	a, err := app.New(ctx, app.Config{
		GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", SealKeyFile: s.seal, Heartbeat: beat, Drain: 300 * time.Millisecond, StartWait: patience,
	}, app.Deps{NC: s.connect(), Log: s.logger(), Registry: prometheus.NewRegistry()})
	require.NoError(s.t, err)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return "http://" + a.HTTP(), done
}

func TestBoundsOfSessions(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	id := w.session(nil)["session_id"].(string)
	v := w.command(id, "big").is(t, 200)
	require.Equal(t, true, v["truncated"])
	require.Len(t, v["stdout"], 1<<20)
	require.Equal(t, false, w.command(id, "say x").is(t, 200)["truncated"])
	for body, said := range map[string]string{
		`{}`:                     "command must not be empty",
		`{"command":" "}`:        "command must not be empty",
		`{"command":"a\u0000b"}`: "zero byte",
		`{"command":"` + strings.Repeat("a", 64<<10+1) + `"}`: "64 KiB",
		`{"command":"a","timeout":-1}`:                        "timeout must be",
		`{"command":"a","timeout":1e9}`:                       "over the maximum",
		`{"command":7}`:                                       "command must be of another type",
	} {
		require.Contains(t, w.send("POST", "/sandboxes/demo/session/"+id+"/exec", strings.NewReader(body)).refused(t, 422, "validation"), said)
	}
	w.json("POST", "/sandboxes/demo/session", map[string]any{"session_id": "a/b"}).refused(t, 422, "validation")
	for range 7 {
		w.session(nil)
	}
	require.Contains(t, w.send("POST", "/sandboxes/demo/session", nil).refused(t, 429, "quota"), "8 sessions")
	w.send("DELETE", "/sandboxes/demo/session/"+id, nil).is(t, 200)
	w.session(nil)
}

// A session is gone with what runs in its sandbox.
func TestSessionsOfASandboxThatStops(t *testing.T) {
	w := newShells(t, nil)
	w.made("demo")
	id := w.session(nil)["session_id"].(string)
	w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)
	w.started[0].end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonSandboxStopped, ExitCode: 137, Signal: 9})
	w.send("POST", "/sandboxes/demo/session", nil).refused(t, 409, "sandbox_stopped")
	require.Contains(t, w.command(id, "say x").refused(t, 409, "illegal_state"), "sandbox_stopped")
	require.Empty(t, w.send("GET", "/sandboxes/demo/session", nil).is(t, 200)["sessions"])
	w.send("POST", "/sandboxes/demo/start", nil).is(t, 200)
	w.session(nil)
	w.send("DELETE", "/sandboxes/demo", nil).is(t, 200)
	for method, path := range map[string]string{"POST": "", "GET": "", "DELETE": "/" + id} {
		w.send(method, "/sandboxes/demo/session"+path, nil).refused(t, 404, "sandbox_not_found")
	}
	w.command(id, "say x").refused(t, 404, "sandbox_not_found")
}

// Another tenant's session is answered like none, and so is a command that is no session.
func TestForeignSessions(t *testing.T) {
	w := newShells(t, twoTenants)
	alice, bob := w.with("Authorization: Bearer "+secret("alice")), w.with("Authorization: Bearer "+secret("bob"))
	theirs, _ := bob.made("demo")["id"].(string)
	alice.made("demo")
	id := bob.send("POST", "/sandboxes/demo/session", nil).is(t, 201)["session_id"].(string)
	w.peer.script("bash", func(x *execution) { x.complete(0) })
	exec := alice.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "x"}).is(t, 200)["execution_id"].(string)
	alice.send("GET", "/sandboxes/demo/session/"+exec, nil).refused(t, 404, "exec_not_found")
	calls := map[string]string{"GET /": "", "DELETE /": "", "POST /exec": `{"command":"say x"}`}
	for call, body := range calls {
		method, below, _ := strings.Cut(call, " /")
		if below != "" {
			below = "/" + below
		}
		ask := func(box, session string) answer {
			return alice.send(method, "/sandboxes/"+box+"/session/"+session+below, strings.NewReader(body))
		}
		none, noBox := ids.New(), ids.New()
		a, b := ask("demo", none), ask("demo", id)
		require.Equal(t, 404, a.status, call)
		require.Equal(t, learned(a, none), learned(b, id), call)
		a, b = ask(noBox, none), ask(theirs, id)
		require.Equal(t, 404, a.status, call)
		require.Equal(t, learned(a, none, noBox), learned(b, id, theirs), call)
		ask("demo", "a-name").refused(t, 404, "exec_not_found")
	}
	alice.send("GET", "/sandboxes/"+theirs+"/session", nil).refused(t, 404, "sandbox_not_found")
	alice.send("POST", "/sandboxes/"+theirs+"/session", nil).refused(t, 404, "sandbox_not_found")
	require.Empty(t, alice.send("GET", "/sandboxes/demo/session", nil).is(t, 200)["sessions"])
	require.Empty(t, w.ran())
}
