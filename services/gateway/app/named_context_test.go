package app_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/tenant"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const interpreterPath = "/sandboxes/demo/toolbox/code-interpreter"

// kernel plays the program of contexts: the text of a cell is all code since the start, and some code does something else.
func (x *execution) kernel() {
	read, cells := 0, ""
	say := func(v map[string]any) {
		data, err := json.Marshal(v)
		if err != nil {
			x.p.w.t.Error(err)
		}
		x.write(chunks.Stdout, append(data, '\n'))
	}
	for !x.state().Over() && x.p.w.t.Context().Err() == nil {
		line, _, ok := strings.Cut(x.typed()[read:], "\n")
		if !ok {
			<-time.After(tick)
			continue
		}
		read += len(line) + 1
		_, body, _ := strings.Cut(line, " ")
		var r struct{ ID, Do, Code string }
		if json.Unmarshal([]byte(body), &r) != nil {
			continue
		}
		switch {
		case r.Do == "restart":
			cells = ""
			say(map[string]any{"id": r.ID, "python": "3.99.0"})
		case r.Do == "hello":
			say(map[string]any{"id": r.ID, "python": "3.99.0"})
		case r.Code == "end":
			x.end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonOOMKilled, ExitCode: 137, Signal: 9})
		case r.Code == "lose":
			x.lose()
		case r.Code == "spoil":
			x.write(chunks.Stdout, []byte(`{"id":"`+r.ID+`","stdout":7}`+"\n"))
		case r.Code == "busy":
			say(map[string]any{"id": r.ID, "busy": true})
		default:
			cells += r.Code
			say(map[string]any{"id": "somebody else's"})
			say(map[string]any{"id": r.ID, "state": "begun"})
			say(map[string]any{
				"id": r.ID, "stdout": "out", "stderr": "err", "text": cells, "error": nil, "truncated": true, "timed_out": true, "restarted": true,
				"results": []any{
					map[string]any{"type": "application/json", "data": map[string]int{"a": 1}, "main": true}, map[string]any{"type": "image/png", "data": "cG5n"},
				},
			})
		}
	}
}

func newContexts(t *testing.T) *boxes {
	t.Helper()
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("python3", (*execution).kernel)
	return w
}

// cell runs code in a context; "" is the default one.
func (b *boxes) cell(code, id string) answer {
	b.t.Helper()
	return b.json("POST", interpreterPath+"/execute", map[string]any{"code": code, "context_id": id})
}

func (b *boxes) newContext(headers ...string) string {
	b.t.Helper()
	made := b.send("POST", interpreterPath+"/contexts", strings.NewReader(`{"language":"python","cwd":"/workspace"}`), headers...).is(b.t, 201)
	require.Equal(b.t, []any{"python", "/workspace", "RUNNING", false, "3.99.0"},
		[]any{made["language"], made["cwd"], made["state"], made["default"], made["python"]})
	return made["id"].(string)
}

func (b *boxes) contextIDs() []string {
	b.t.Helper()
	all := []string{}
	for _, c := range b.send("GET", interpreterPath+"/contexts", nil).is(b.t, 200)["contexts"].([]any) {
		all = append(all, c.(map[string]any)["id"].(string))
	}
	return all
}

func TestCellsOfContexts(t *testing.T) {
	w := newContexts(t)
	require.Empty(t, w.contextIDs())
	a := w.cell("a", "").is(t, 200)
	require.Equal(t, []any{"out", "err", "a", nil, true, true, true}, []any{
		a["stdout"], a["stderr"], a["text"], a["error"], a["truncated"], a["timed_out"], a["restarted"],
	})
	require.Len(t, a["results"], 2)
	require.Equal(t, []any{"cG5n"}, a["images"])
	byDefault := a["context_id"].(string)
	require.Equal(t, "ab", w.cell("b", "").is(t, 200)["text"])

	// Another gateway knows all of it, from the log.
	other, _ := w.gateway(w.connect())
	there := *w
	there.base = "http://" + other.HTTP()
	own := there.newContext()
	require.Equal(t, "x", w.cell("x", own).is(t, 200)["text"])
	require.Equal(t, "xy", there.cell("y", own).is(t, 200)["text"])
	require.Equal(t, "abc", there.cell("c", byDefault).is(t, 200)["text"])
	require.Equal(t, []string{byDefault, own}, w.contextIDs())

	require.Equal(t, own, w.send("POST", interpreterPath+"/contexts/"+own+"/restart", nil).is(t, 200)["id"])
	require.Equal(t, "z", w.cell("z", own).is(t, 200)["text"])
	require.Equal(t, "ENDED", there.send("DELETE", interpreterPath+"/contexts/"+own, nil).is(t, 200)["state"])
	require.Equal(t, "ENDED", w.send("DELETE", interpreterPath+"/contexts/"+own, nil).is(t, 200)["state"])
	require.Equal(t, []string{byDefault}, w.contextIDs())
	w.cell("z", own).refused(t, 409, "illegal_state")
	w.send("POST", interpreterPath+"/contexts/"+own+"/restart", nil).refused(t, 409, "illegal_state")
	require.NotEqual(t, own, w.newContext(), "an id is used once")
	require.Equal(t, "abcd", w.cell("d", "").is(t, 200)["text"])
}

// Of many who use the default context first one makes it; of many who make contexts each gets its own, up to the bound.
func TestContextsAreMadeOnce(t *testing.T) {
	w := newContexts(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { w.cell("a", "") })
	}
	all.Wait()
	require.Len(t, w.contextIDs(), 1)
	made := make([]string, 8)
	for i := range made {
		all.Go(func() { made[i] = w.newContext() })
	}
	all.Wait()
	require.ElementsMatch(t, made, w.contextIDs()[1:])
	keyed := w.newContext("Idempotency-Key: one")
	require.Equal(t, keyed, w.newContext("Idempotency-Key: one"))
	for range 15 - 9 {
		w.newContext()
	}
	require.Len(t, w.contextIDs(), 16)
	require.Contains(t, w.send("POST", interpreterPath+"/contexts", nil).refused(t, 429, "too_many_execs"), "15 contexts")
	require.Equal(t, "ENDED", w.send("DELETE", interpreterPath+"/contexts/"+keyed, nil).is(t, 200)["state"])
	w.newContext()
}

// What ends a context under a cell is told, and the next cell of the default one gets a new context.
func TestContextsThatEnd(t *testing.T) {
	w := newContexts(t)
	before := w.cell("a", "").is(t, 200)["context_id"]
	require.Contains(t, w.cell("end", "").refused(t, 409, "illegal_state"), "oom_killed")
	after := w.cell("b", "").is(t, 200)
	require.Equal(t, "b", after["text"])
	require.NotEqual(t, before, after["context_id"])
	w.cell("lose", "").refused(t, 500, "exec_lost")
	w.cell("spoil", "").refused(t, 500, "internal")
	w.cell("busy", "").refused(t, 429, "too_many_calls")

	// However many there were, the last one is found.
	for range 9 {
		w.cell("end", "").refused(t, 409, "illegal_state")
	}
	require.Equal(t, "c", w.cell("c", "").is(t, 200)["text"])

	id := w.newContext()
	w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)
	for _, x := range []*execution{w.peer.exec(id), w.peer.exec(w.contextIDs()[0])} {
		x.end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonSandboxStopped})
	}
	w.cell("a", "").refused(t, 409, "sandbox_stopped")
	w.cell("a", id).refused(t, 409, "sandbox_stopped")
	w.send("POST", interpreterPath+"/contexts", nil).refused(t, 409, "sandbox_stopped")
	require.Empty(t, w.contextIDs())
}

func (p *peer) exec(id string) (x *execution) {
	p.set(func() { x = p.running[id] })
	return x
}

func TestAnImageWithoutPython(t *testing.T) {
	w := newContexts(t)
	w.peer.script("python3", func(x *execution) {
		x.end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonStartFailed, ExitCode: 127, Message: "python3: not found"})
	})
	for _, a := range []answer{w.cell("a", ""), w.send("POST", interpreterPath+"/contexts", nil)} {
		require.Contains(t, a.refused(t, 409, "start_failed"), "no python3")
	}
}

func TestRefusalsOfCells(t *testing.T) {
	w := newContexts(t)
	for body, said := range map[string]string{
		`{}`: "code must not be empty", `{"code":"x","timeout":-1}`: "timeout must be", `{"code":"x","timeout":3601}`: "timeout must be",
		`{"code":"x","language":"r"}`: "language must be python", `{"code":"` + strings.Repeat("x", 1<<20+1) + `"}`: "code must be at most 1 MiB",
		`{"code":7}`: "code must be of another type",
	} {
		require.Contains(t, w.send("POST", interpreterPath+"/execute", strings.NewReader(body)).refused(t, 422, "validation"), said, "%.50s", body)
	}
	w.send("POST", interpreterPath+"/contexts", strings.NewReader(`{"language":"r"}`)).refused(t, 422, "validation")
	w.send("POST", interpreterPath+"/contexts", strings.NewReader(`{"cwd":"x\u0000"}`)).refused(t, 422, "validation")
	w.send("GET", interpreterPath+"/execute", nil).refused(t, 404, "route_not_found")
	w.peer.script("bash", func(x *execution) { x.complete(0) })
	plain := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "x"}).is(t, 200)["execution_id"].(string)
	for _, id := range []string{"x", ids.New(), plain} {
		w.cell("a", id).refused(t, 404, "exec_not_found")
		w.send("DELETE", interpreterPath+"/contexts/"+id, nil).refused(t, 404, "exec_not_found")
		w.send("POST", interpreterPath+"/contexts/"+id+"/restart", nil).refused(t, 404, "exec_not_found")
	}
	require.Equal(t, 2, w.peer.count("cmd.exec.")+w.peer.count("cmd.sandbox."), "nothing was begun but the sandbox and bash")
}

// What is another tenant's is answered like what never was.
func TestContextsOfAnotherTenant(t *testing.T) {
	w := newBoxes(t, twoTenants)
	w.peer.script("python3", (*execution).kernel)
	alice, bob := w.with("X-Sandrpod-Token: "+secret("alice")), w.with("X-Sandrpod-Token: "+secret("bob"))
	box := alice.made("demo")["id"].(string)
	id := alice.newContext()
	bob.made("demo")
	bob.cell("a", id).refused(t, 404, "exec_not_found")
	for _, path := range []string{"/contexts/" + id + "/restart", "/contexts", "/execute"} {
		bob.send("POST", strings.Replace(interpreterPath, "demo", box, 1)+path, strings.NewReader(`{"code":"a"}`)).refused(t, 404, "sandbox_not_found")
		bob.send("POST", strings.Replace(interpreterPath, "demo", ids.New(), 1)+path, strings.NewReader(`{"code":"a"}`)).refused(t, 404, "sandbox_not_found")
	}
	bob.send("GET", strings.Replace(interpreterPath, "demo", box, 1)+"/contexts", nil).refused(t, 404, "sandbox_not_found")
	bob.send("DELETE", interpreterPath+"/contexts/"+id, nil).refused(t, 404, "exec_not_found")
	bob.send("POST", interpreterPath+"/contexts/"+id+"/restart", nil).refused(t, 404, "exec_not_found")
	require.Equal(t, "a", alice.cell("a", id).is(t, 200)["text"])

	key := mint(w.world, "acme", tenant.Inspect)
	weak := w.with("X-Sandrpod-Token: " + key.Text)
	w.until(func() bool { return weak.send("GET", "/sandboxes", nil).status == 200 })
	for _, r := range []string{"POST /execute", "POST /contexts", "GET /contexts", "POST /contexts/x/restart", "DELETE /contexts/x"} {
		method, path, _ := strings.Cut(r, " ")
		weak.send(method, interpreterPath+path, nil).refused(t, 403, "scope_missing")
	}
}

// The program and the code stand in no event.
func TestTheLogHasNoCode(t *testing.T) {
	w := newContexts(t)
	w.cell("a_secret_in_code", "").is(t, 200)
	all := everything(t, w.JS, "EVT")
	require.NotContains(t, all, "a_secret_in_code")
	require.NotContains(t, all, "class Keeper")
	require.Contains(t, string(w.send("GET", "/sandboxes/demo/logs", nil).body), "python3")
}
