package app_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// helped scripts the helper of watchers: it says that it watches, and what it is given then.
func (b *boxes) helped() chan *execution {
	began := make(chan *execution, 8)
	b.peer.script("sandtrail-watch", func(x *execution) {
		x.write(chunks.Stdout, []byte(`{"name":".","type":"ready"}`+"\n"))
		began <- x
	})
	return began
}

func change(name, kind string) string {
	line, _ := json.Marshal(map[string]string{"name": name, "type": kind}) //nolint:errchkjson // strings encode
	return string(line) + "\n"
}

func (x *execution) tells(events ...string) {
	for _, e := range events {
		x.write(chunks.Stdout, []byte(e))
	}
}

// told are the events of an answer, as `type name`.
func told(t *testing.T, v map[string]any) []string {
	t.Helper()
	all, ok := v["events"].([]any)
	require.True(t, ok, "%v", v)
	out := []string{}
	for _, e := range all {
		out = append(out, fmt.Sprint(e.(map[string]any)["type"], " ", e.(map[string]any)["name"]))
	}
	return out
}

func (b *boxes) watch(path string, recursive bool) string {
	b.t.Helper()
	v := b.json("POST", "/sandboxes/demo/toolbox/watch/create", map[string]any{"path": path, "recursive": recursive}).is(b.t, 200)
	id, _ := v["watcher_id"].(string)
	require.NotEmpty(b.t, id)
	return id
}

func (b *boxes) seen(id string, more ...string) answer {
	b.t.Helper()
	return b.send("GET", "/sandboxes/demo/toolbox/watch/events?id="+url.QueryEscape(id)+strings.Join(more, ""), nil)
}

func TestWatchersTellWhatChangedSinceTheLastCall(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	began := w.helped()
	id := w.watch("src", true)
	x := <-began
	spec := x.cmd.GetStart().GetSpec()
	require.Equal(t, []any{"/workspace/src", []string{"recursive"}, true, true}, []any{spec.GetWorkingDir(), spec.GetArgs(), spec.GetDetach(), spec.GetKeepStdin()})
	require.Empty(t, told(t, w.seen(id).is(t, 200)))
	x.tells(change("a", "create"), change("a", "write"))
	require.Equal(t, []string{"create a", "write a"}, told(t, w.seen(id).is(t, 200)))
	require.Empty(t, told(t, w.seen(id).is(t, 200)), "each is told once")
	// What is no event of a known kind is not passed on; a line whose end has not come waits for it.
	x.tells("\n", "nonsense\n", change("b", "surprise"), change("c/ü", "rename")+`{"name":"d",`)
	first := w.seen(id).is(t, 200)
	require.Equal(t, []string{"rename c/ü"}, told(t, first))
	x.tells(`"type":"remove"}` + "\n")
	require.Equal(t, []string{"remove d"}, told(t, w.seen(id).is(t, 200)))

	// With a place of its own a call gets the same again, whoever else asks, also once the watcher has ended.
	after := "&after=" + first["next"].(json.Number).String()
	for range 2 {
		require.Equal(t, []string{"remove d"}, told(t, w.seen(id, after).is(t, 200)))
	}
	require.Len(t, told(t, w.seen(id, "&after=0").is(t, 200)), 4)
	// A place that there is not yet says nothing of how far was read.
	read := func() int { return w.peer.get(func() int { return len(w.peer.inputs[id]) }) }
	before := read()
	require.Empty(t, told(t, w.seen(id, "&after=1000000000000").is(t, 200)))
	require.Equal(t, before, read())
	remove := func(body map[string]any) answer { return w.json("POST", "/sandboxes/demo/toolbox/watch/remove", body) }
	require.Equal(t, true, remove(map[string]any{"id": id}).is(t, 200)["success"])
	require.Equal(t, true, remove(map[string]any{"watcher_id": id}).is(t, 200)["success"], "once more is no error")
	require.Equal(t, []string{"remove d"}, told(t, w.seen(id, after).is(t, 200)))
	require.Contains(t, w.seen(id).refused(t, 404, "exec_not_found"), "cancelled")
	end := w.seen(id, after).is(t, 200)["next"].(json.Number).String()
	w.seen(id, "&after="+end).refused(t, 404, "exec_not_found")
}

func TestAWatcherIsWaitedFor(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	began := w.helped()
	id := w.watch("/etc", false)
	x := <-began
	require.Equal(t, "/etc", x.cmd.GetStart().GetSpec().GetWorkingDir())
	require.Empty(t, x.cmd.GetStart().GetSpec().GetArgs())
	next := w.seen(id).is(t, 200)["next"].(json.Number).String()
	got := make(chan answer, 1)
	go func() { got <- w.seen(id, "&wait=30&after="+next) }()
	w.until(func() bool { return w.peer.get(func() int { return len(w.peer.inputs[id]) }) > 0 })
	begin := time.Now()
	x.tells(change("f", "chmod"))
	require.Equal(t, []string{"chmod f"}, told(t, (<-got).is(t, 200)))
	require.Less(t, time.Since(begin), patience)
}

// More than one call reads comes by several, each event once.
func TestManyChangesAreToldInParts(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.set(func() { w.peer.typed = 64 << 10 })
	began := w.helped()
	id := w.watch("src", false)
	x := <-began
	const n = 20_000
	var batch strings.Builder
	for i := range n {
		batch.WriteString(change(fmt.Sprintf("file-%d", i), "create"))
		if batch.Len() > 100_000 || i == n-1 {
			x.tells(batch.String())
			batch.Reset()
		}
	}
	var all []string
	for more := true; more; {
		v := w.seen(id).is(t, 200)
		all = append(all, told(t, v)...)
		more, _ = v["more"].(bool)
	}
	require.Len(t, all, n)
	for i, e := range all {
		require.Equal(t, fmt.Sprintf("create file-%d", i), e)
	}
}

func TestWhatIsNotWatched(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	create := func(body string) answer {
		return w.send("POST", "/sandboxes/demo/toolbox/watch/create", strings.NewReader(body), "Content-Type: application/json")
	}
	create(`{}`).refused(t, 422, "validation")
	create(`{"path":"a\u0000b"}`).refused(t, 422, "validation")
	create(`{"path":7}`).refused(t, 422, "validation")
	for _, c := range []struct {
		end    *eventsv1.ExecCompleted
		said   string
		status int
		reason string
	}{
		{&eventsv1.ExecCompleted{Reason: sandbox.ReasonStartFailed, ExitCode: 126, Message: `working directory "/workspace/x" does not exist`}, "", 404, "path_not_found"},
		{&eventsv1.ExecCompleted{Reason: sandbox.ReasonStartFailed, ExitCode: 127, Message: `"sandtrail-watch": command not found`}, "", 501, "not_implemented"},
		{&eventsv1.ExecCompleted{Reason: sandbox.ReasonExited, ExitCode: 4}, "the sandbox has 4 watchers\n", 429, "too_many_execs"},
		{&eventsv1.ExecCompleted{Reason: sandbox.ReasonExited, ExitCode: 3}, "Permission denied\n", 403, "path_not_file"},
	} {
		w.peer.script("sandtrail-watch", func(x *execution) {
			if c.said != "" {
				x.write(chunks.Stderr, []byte(c.said))
			}
			x.end(c.end)
		})
		create(`{"path":"x"}`).refused(t, c.status, c.reason)
	}
	w.seen("nobody").refused(t, 422, "validation")
	w.seen("").refused(t, 422, "validation")
	w.seen(ids.New()).refused(t, 404, "exec_not_found")
	w.peer.script("bash", func(x *execution) { x.complete(0) })
	command, _ := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "x"}).is(t, 200)["execution_id"].(string)
	w.seen(command).refused(t, 404, "exec_not_found")
	w.json("POST", "/sandboxes/demo/toolbox/watch/remove", map[string]any{"id": command}).refused(t, 404, "exec_not_found")
	w.seen(command, "&after=x").refused(t, 422, "validation")
	w.seen(command, "&wait=x").refused(t, 422, "validation")
}

func TestWatchersAreTheirTenants(t *testing.T) {
	w := newBoxes(t, twoTenants)
	alice, bob := w.with("Authorization: Bearer "+secret("alice")), w.with("Authorization: Bearer "+secret("bob"))
	box, _ := alice.made("demo")["id"].(string)
	bob.made("demo")
	began := w.helped()
	id := alice.watch("src", false)
	x := <-began
	x.tells(change("f", "create"))
	for _, name := range []string{"demo", box, ids.New()} {
		bob.send("GET", "/sandboxes/"+name+"/toolbox/watch/events?id="+id, nil).refused(t, 404, "exec_not_found")
		bob.json("POST", "/sandboxes/"+name+"/toolbox/watch/remove", map[string]any{"id": id}).refused(t, 404, "exec_not_found")
	}
	bob.json("POST", "/sandboxes/"+box+"/toolbox/watch/create", map[string]any{"path": "src"}).refused(t, 404, "sandbox_not_found")
	require.Equal(t, []string{"create f"}, told(t, alice.seen(id).is(t, 200)))
}
