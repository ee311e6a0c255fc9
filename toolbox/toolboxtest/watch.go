package toolboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/watch"
)

// RunWatch checks what a toolbox promises of watchers. The sandbox has a shell with mkdir, mv, rm, chmod and seq.
func RunWatch(t *testing.T, c *client.Client) {
	s := suite{c}
	t.Run("one directory", s.watchOne)
	t.Run("tree", s.watchTree)
	t.Run("files from outside", s.watchOutside)
	t.Run("overflow", s.watchOverflow)
	t.Run("refusals", s.watchRefusals)
	t.Run("ends", s.watchEnds)
}

// watcher is one that is followed.
type watcher struct {
	suite
	t      *testing.T
	ctx    context.Context //nolint:containedctx // of one test
	id     string
	stream *client.Stream
	out    []byte
	read   uint64
	events []watch.Event
	end    *toolboxv1.End
}

// watching makes a directory and watches it.
func (s suite) watching(t *testing.T, dir string, args ...string) *watcher {
	t.Helper()
	require.Zero(t, s.collect(t, s.sh(t, "mkdir -p "+dir), 0, 0).end.ExitCode)
	w := s.watcher(t, dir, args...)
	w.until(watch.Event{Name: ".", Type: watch.Ready})
	return w
}

func (s suite) watcher(t *testing.T, dir string, args ...string) *watcher {
	t.Helper()
	w := &watcher{suite: s, t: t, id: NewID()}
	var cancel func()
	w.ctx, cancel = context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	reply, err := s.Start(w.ctx, &toolboxv1.Start{ExecId: w.id, Argv: append([]string{watch.Program}, args...), WorkingDir: dir, KeepStdin: true})
	require.NoError(t, err)
	require.True(t, reply.Started)
	w.stream, err = s.Attach(w.ctx, &toolboxv1.Attach{ExecId: w.id})
	require.NoError(t, err)
	t.Cleanup(w.stream.Close)
	return w
}

// next reads what comes; false: its end.
func (w *watcher) next() bool {
	w.t.Helper()
	e, err := w.stream.Recv()
	require.NoError(w.t, err, "%d events so far", len(w.events))
	if d := e.GetData(); d != nil {
		require.EqualValues(w.t, 1, d.Stream, "%s", d.Data)
		w.out, w.read = append(w.out, d.Data...), w.read+uint64(len(d.Data))
	}
	for {
		line, rest, ok := bytes.Cut(w.out, []byte{'\n'})
		if !ok {
			break
		}
		w.out = rest
		var event watch.Event
		require.NoError(w.t, json.Unmarshal(line, &event), "%s", line)
		w.events = append(w.events, event)
	}
	w.end = e.GetEnd()
	return w.end == nil
}

// until reads until an event was told, and gives those before it.
func (w *watcher) until(last watch.Event) []watch.Event {
	w.t.Helper()
	for {
		if i := slices.Index(w.events, last); i >= 0 {
			before := slices.Clone(w.events[:i])
			w.events = w.events[i+1:]
			return before
		}
		require.True(w.t, w.next(), "it ended without %v", last)
	}
}

// after runs a script and gives the events that it leads to, without those of a file by which their end is known.
func (w *watcher) after(dir, script string) []watch.Event {
	w.t.Helper()
	end := "end-" + NewID()[:8]
	c := w.collect(w.t, w.sh(w.t, "cd "+dir+"; "+script+"; mkdir "+end), 0, 0)
	require.Zero(w.t, c.end.ExitCode, "%s", c.stderr)
	return w.until(watch.Event{Name: end, Type: watch.Create})
}

func is(name, kind string) watch.Event { return watch.Event{Name: name, Type: kind} }

func (s suite) watchOne(t *testing.T) {
	w := s.watching(t, "watch-one")
	defer w.close()
	require.Equal(t, []watch.Event{is("f", watch.Create), is("f", watch.Write)}, w.after("watch-one", "for i in 1 2 3; do echo $i; done > f"), "a burst is one change")
	require.Contains(t, w.after("watch-one", "chmod 600 f"), is("f", watch.Chmod))
	require.Equal(t, []watch.Event{is("f", watch.Rename), is("a b", watch.Create)}, w.after("watch-one", "mv f 'a b'"))
	require.Contains(t, w.after("watch-one", "rm 'a b'"), is("a b", watch.Remove))
	require.Equal(t, []watch.Event{is("d", watch.Create)}, w.after("watch-one", "mkdir d; echo x > d/f"), "what is below is not watched")
}

func (s suite) watchTree(t *testing.T) {
	require.Zero(t, s.collect(t, s.sh(t, "mkdir -p watch-tree/there/below"), 0, 0).end.ExitCode)
	w := s.watching(t, "watch-tree", watch.Recursive)
	defer w.close()
	require.Equal(t, []watch.Event{is("there/below/f", watch.Create), is("there/below/f", watch.Write)}, w.after("watch-tree", "echo x > there/below/f"))
	made := w.after("watch-tree", "mkdir -p new/deep; echo x > new/deep/f")
	for _, e := range []watch.Event{is("new", watch.Create), is("new/deep", watch.Create), is("new/deep/f", watch.Create)} {
		require.Contains(t, made, e)
	}
	moved := w.after("watch-tree", "mv new other")
	require.Equal(t, is("new", watch.Rename), moved[0])
	require.Contains(t, moved, is("other", watch.Create))
	require.Equal(t, []watch.Event{is("other/deep/f", watch.Write)}, w.after("watch-tree", "echo y >> other/deep/f"), "under its new name")
	gone := w.after("watch-tree", "rm -r other")
	for _, e := range []watch.Event{is("other/deep/f", watch.Remove), is("other/deep", watch.Remove), is("other", watch.Remove)} {
		require.Contains(t, gone, e)
	}
}

// watchOutside: what a toolbox itself writes and removes is told too, and nothing of how it does it.
func (s suite) watchOutside(t *testing.T) {
	w := s.watching(t, "watch-outside", watch.Recursive)
	defer w.close()
	write := func(name string) {
		_, err := s.WriteFile(w.ctx, &toolboxv1.WriteFile{Path: name, Data: []byte("x"), Last: true})
		require.NoError(t, err)
	}
	write("watch-outside/f")
	first := w.after("watch-outside", "true")
	require.Contains(t, first, is("f", watch.Create))
	write("/workspace/watch-outside/f")
	second := w.after("watch-outside", "true")
	write("watch-outside/new/deep/g")
	write("elsewhere/h")
	third := w.after("watch-outside", "true")
	for _, e := range []watch.Event{is("new", watch.Create), is("new/deep", watch.Create), is("new/deep/g", watch.Create)} {
		require.Contains(t, third, e)
	}
	require.Contains(t, w.after("watch-outside", "echo >> new/deep/g"), is("new/deep/g", watch.Write), "such a directory is watched")
	_, err := s.DeleteFile(w.ctx, &toolboxv1.DeleteFile{Path: "watch-outside/f"})
	require.NoError(t, err)
	fourth := w.after("watch-outside", "true")
	require.Contains(t, fourth, is("f", watch.Remove))
	for _, e := range slices.Concat(first, second, fourth) {
		require.Equal(t, "f", e.Name)
	}
	require.NotEmpty(t, second)
}

// watchOverflow: of more changes than fit some are told, and that there were more.
func (s suite) watchOverflow(t *testing.T) {
	w := s.watching(t, "watch-many")
	defer w.close()
	signal := func(n int32) {
		_, err := s.Signal(w.ctx, &toolboxv1.Signal{ExecId: w.id, Signal: n})
		require.NoError(t, err)
	}
	signal(19) // so that all of them are there at once
	c := s.collect(t, s.sh(t, "cd watch-many; for i in $(seq 1 1000); do : > f$i; done"), 0, 0)
	require.Zero(t, c.end.ExitCode, "%s", c.stderr)
	signal(18)
	before := w.until(is(".", watch.Overflow))
	require.NotEmpty(t, before)
}

func (s suite) watchRefusals(t *testing.T) {
	w := s.watcher(t, "no-such-directory")
	for w.next() {
	}
	require.Equal(t, "start_failed", w.end.Reason)
	require.Contains(t, w.end.Message, "does not exist")
	c := s.collect(t, s.sh(t, "true", func(r *toolboxv1.Start) { r.Argv = []string{watch.Program, "more"} }), 0, 0)
	require.EqualValues(t, watch.ExitDirectory, c.end.ExitCode)
	var all []*watcher
	for i := range watch.MostWatchers {
		all = append(all, s.watching(t, fmt.Sprintf("watch-%d", i)))
	}
	over := s.watcher(t, "watch-0")
	for {
		e, err := over.stream.Recv()
		require.NoError(t, err)
		if over.end = e.GetEnd(); over.end != nil {
			break
		}
	}
	require.EqualValues(t, watch.ExitWatchers, over.end.ExitCode)
	for _, w := range all {
		w.close()
	}
}

// close ends the watcher by the end of its standard input.
func (w *watcher) close() {
	w.t.Helper()
	if w.t.Failed() {
		return
	}
	_, err := w.Stdin(w.ctx, &toolboxv1.Stdin{ExecId: w.id, Eof: true})
	require.NoError(w.t, err)
	for w.end == nil {
		w.next()
	}
	require.Equal(w.t, []any{"exited", int32(watch.ExitOver)}, []any{w.end.Reason, w.end.ExitCode})
}

func (s suite) watchEnds(t *testing.T) {
	w := s.watching(t, "watch-ends")
	w.close()
	w = s.watching(t, "watch-ends")
	require.Zero(t, s.collect(t, s.sh(t, "rmdir watch-ends"), 0, 0).end.ExitCode)
	w.until(is(".", watch.Remove))
	for w.end == nil {
		w.next()
	}
	require.EqualValues(t, watch.ExitOver, w.end.ExitCode)
}
