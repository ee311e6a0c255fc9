package app_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

const ourProtocol = "sandtrail.terminal.v1"

// glass is a client of a terminal.
type glass struct {
	*boxes
	conn   *websocket.Conn
	speaks bool
	// shown is the output so far, chunk the number of its last chunk.
	shown []byte
	chunk uint64
	exec  string
}

// look opens a terminal; the query begins with ?. speaks: as a client of our protocol, which is greeted first.
func (b *boxes) look(query string, speaks bool, headers ...string) *glass {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	o := &websocket.DialOptions{HTTPHeader: http.Header{}}
	for _, h := range append(append([]string{}, b.headers...), headers...) {
		name, value, _ := strings.Cut(h, ": ")
		o.HTTPHeader.Add(name, value)
	}
	if speaks {
		o.Subprotocols = []string{ourProtocol}
	}
	to := "ws" + strings.TrimPrefix(b.base, "http") + "/api/v1/sandboxes/demo/pty" + query
	conn, res, err := websocket.Dial(ctx, to, o) //nolint:bodyclose // it is the connection's
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	g := &glass{boxes: b, conn: conn, speaks: speaks, exec: res.Header.Get("Sandtrail-Execution-Id")}
	require.NotEmpty(b.t, g.exec)
	require.Equal(b.t, speaks, conn.Subprotocol() == ourProtocol)
	return g
}

// next reads a message: of text the JSON, of output nil.
func (g *glass) next() (map[string]any, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	kind, data, err := g.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	if kind == websocket.MessageText {
		require.True(g.t, g.speaks, "who does not know our protocol would show it: %s", data)
		m := map[string]any{}
		require.NoError(g.t, json.Unmarshal(data, &m))
		return m, nil
	}
	if g.speaks {
		g.chunk, data = binary.BigEndian.Uint64(data), data[8:]
	}
	g.shown = append(g.shown, data...)
	return nil, nil
}

// until reads until a text was shown.
func (g *glass) until(text string) {
	g.t.Helper()
	for !strings.Contains(string(g.shown), text) {
		_, err := g.next()
		require.NoError(g.t, err, "%q", g.shown)
	}
}

// told reads until a message of a type.
func (g *glass) told(kind string) map[string]any {
	g.t.Helper()
	for {
		m, err := g.next()
		require.NoError(g.t, err)
		if m["type"] == kind {
			return m
		}
	}
}

// closed reads to the end and gives its code.
func (g *glass) closed() websocket.StatusCode {
	g.t.Helper()
	for {
		if _, err := g.next(); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func (g *glass) say(kind websocket.MessageType, data string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	require.NoError(g.t, g.conn.Write(ctx, kind, []byte(data)))
}

// awaits is what the peer's script waits for: that so much was typed.
func (x *execution) awaits(text string) {
	deadline := time.Now().Add(patience)
	for !strings.Contains(x.typed(), text) {
		if time.Now().After(deadline) {
			x.p.w.t.Errorf("%q was not typed: %q", text, x.typed())
			return
		}
		<-time.After(tick)
	}
}

// waits until the test goes on, or is over.
func (x *execution) waits(on <-chan struct{}) {
	select {
	case <-on:
	case <-x.p.w.t.Context().Done():
	}
}

func (x *execution) typed() (s string) {
	x.p.set(func() { s = string(x.p.inputs[x.agg.ID]) })
	return s
}

func (x *execution) state() (state sandbox.Exec) {
	h, err := x.p.log.Load(context.Background(), x.agg)
	if err == nil {
		state, err = sandbox.FoldExec(h)
	}
	if err != nil {
		x.p.w.t.Error(err)
	}
	return state
}

// What the published command line does works: it sends each key as text, shows whatever comes, and is left when the shell ends.
func TestATerminalOfThePublishedClient(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	raw := "\x1b[31mred\x1b[0m \xff\x00\xe2\x82 $ "
	spec := make(chan *eventsv1.ExecSpec, 1)
	var x *execution
	w.peer.script("sh", func(run *execution) {
		x = run
		spec <- run.cmd.GetStart().GetSpec()
		for i := range len(raw) {
			run.write(chunks.Stdout, []byte{raw[i]})
		}
		run.awaits("exit 3\r")
		run.complete(3)
	})
	g := w.look("", false)
	s := <-spec
	require.Equal(t, []any{uint32(80), uint32(24), true, true, []string{"TERM"}},
		[]any{s.GetTerminal().GetColumns(), s.GetTerminal().GetRows(), s.GetKeepStdin(), s.GetStopAtOutputLimit(), s.GetEnvKeys()})
	g.until("$ ")
	g.say(websocket.MessageBinary, "\xff\xfd\x1c\x00\x84\x00\x32")
	w.until(func() bool { return x.state().TerminalSize().GetColumns() == 132 })
	g.say(websocket.MessageBinary, "\xff\xfa\x1f\x00\x64\x00\x1e\xff\xf0")
	w.until(func() bool { return x.state().TerminalSize().GetColumns() == 100 })
	const keys = `{"type":"resize","columns":10,"rows":10} is typed` + "\x03\x1a\r" + "exit 3\r"
	for _, key := range strings.Split(keys, "") {
		g.say(websocket.MessageText, key)
	}
	require.Equal(t, websocket.StatusNormalClosure, g.closed())
	require.Equal(t, raw, string(g.shown))
	require.Zero(t, strings.Compare(keys, x.typed()), "%q: what is typed is never taken for anything else", x.typed())
	require.Equal(t, uint32(30), x.state().TerminalSize().GetRows())
}

// A connection that broke is made again: everything that was shown is there, once, and what was typed is counted.
func TestATerminalIsComeBackTo(t *testing.T) {
	w := newBoxes(t, nil, func(c *app.Config) { c.DisconnectGrace = time.Hour })
	w.made("demo")
	more, over := make(chan struct{}), make(chan struct{})
	w.peer.script("sh", func(x *execution) {
		x.write(chunks.Stdout, []byte("first\r\n"))
		x.awaits("abcdefgh")
		x.write(chunks.Stdout, []byte("second\r\n"))
		x.waits(more)
		x.write(chunks.Stdout, []byte("third\r\n"))
		x.waits(over)
		x.complete(0)
	})
	g := w.look("?cols=120&rows=40", true)
	require.EqualValues(t, 0, g.told("hello")["input"])
	g.say(websocket.MessageBinary, "abcdefgh")
	g.until("second")
	require.NoError(t, g.conn.CloseNow())
	close(more)
	again := w.look(fmt.Sprintf("?execution=%s&after=%d", g.exec, g.chunk), true)
	require.Equal(t, g.exec, again.exec)
	hello := again.told("hello")
	require.EqualValues(t, 8, hello["input"])
	again.until("third")
	require.Equal(t, "third\r\n", string(again.shown))

	// Without a cursor: what was shown last. Who was there before is told, and does not type on.
	other := w.look("?execution="+g.exec, true)
	other.until("third")
	require.Equal(t, "first\r\nsecond\r\nthird\r\n", string(other.shown))
	again.told("taken")
	require.EqualValues(t, 4001, again.closed())
	close(over)
	require.EqualValues(t, 0, other.told("exit")["code"])
	require.Equal(t, websocket.StatusNormalClosure, other.closed())

	// What has ended can be looked at.
	w.peer.set(func() { w.peer.closed[g.exec] = true })
	last := w.look("?execution="+g.exec, true)
	require.NotContains(t, last.told("hello"), "input")
	last.until("third")
	require.Equal(t, "exited", last.told("exit")["reason"])
}

// What is shown first to who comes back to a long history begins with a line, and is bounded.
func TestRecentHistory(t *testing.T) {
	w := newBoxes(t, nil, func(c *app.Config) { c.DisconnectGrace = time.Hour })
	w.made("demo")
	over := make(chan struct{})
	defer close(over)
	const line = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n"
	w.peer.script("sh", func(x *execution) {
		part := []byte("x" + strings.Repeat(line, 200) + "y")
		for range 60 {
			x.write(chunks.Stdout, part)
		}
		x.write(chunks.Stdout, []byte("the end"))
		x.waits(over)
		x.complete(0)
	})
	g := w.look("", true)
	g.until("the end")
	require.NoError(t, g.conn.CloseNow())
	again := w.look("?execution="+g.exec, true)
	again.until("the end")
	require.True(t, strings.HasPrefix(string(again.shown), line), "%.80q", again.shown)
	require.True(t, strings.HasSuffix(string(g.shown), string(again.shown)))
	require.Greater(t, len(again.shown), 256<<10-13_000)
	require.Less(t, len(again.shown), 256<<10+13_000)
	require.NoError(t, again.conn.CloseNow())
}

// A terminal that everybody has left ends after the grace; one that was to be kept does not.
func TestATerminalThatEverybodyHasLeft(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	ready := make(chan *execution, 2)
	w.peer.script("sh", func(x *execution) {
		x.write(chunks.Stdout, []byte("$ "))
		ready <- x
	})
	kept := w.look("?detach=true", true)
	kept.until("$ ")
	require.NoError(t, kept.conn.Close(websocket.StatusNormalClosure, ""))
	stays := <-ready
	left := w.look("", true)
	left.until("$ ")
	require.NoError(t, left.conn.Close(websocket.StatusNormalClosure, ""))
	x := <-ready
	w.until(func() bool { return x.state().Completed.GetReason() == sandbox.ReasonCancelled })
	require.False(t, stays.state().Over())
	stays.complete(0)
}

// How a terminal ends is told apart: by its program, or in a way that cannot be known.
func TestEndsOfTerminals(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	for name, c := range map[string]struct {
		run   func(*execution)
		check func(*testing.T, *glass)
	}{
		"exit code": {func(x *execution) { x.complete(130) }, func(t *testing.T, g *glass) {
			require.EqualValues(t, 130, g.told("exit")["code"])
			require.Equal(t, websocket.StatusNormalClosure, g.closed())
		}},
		"lost": {func(x *execution) { x.lose() }, func(t *testing.T, g *glass) {
			require.Equal(t, "exec_lost", g.told("error")["error"].(map[string]any)["reason"])
			require.EqualValues(t, 4002, g.closed())
		}},
		"dropped": {func(x *execution) {
			x.store(chunks.Chunk{Number: 1, Stream: chunks.Stdout, Offset: 0, GapTo: 77, StdoutEnd: 77, Time: time.Now()})
			x.number = 1
			x.complete(0)
		}, func(t *testing.T, g *glass) { require.EqualValues(t, 77, g.told("gap")["bytes"]) }},
	} {
		t.Run(name, func(t *testing.T) {
			w.peer.script("sh", c.run)
			c.check(t, w.look("", true))
		})
	}
}

func TestBadMessagesEndAConnectionAndNotTheTerminal(t *testing.T) {
	w := newBoxes(t, nil, func(c *app.Config) { c.DisconnectGrace = time.Hour })
	w.made("demo")
	ready := make(chan *execution, 1)
	w.peer.script("sh", func(x *execution) { ready <- x })
	g := w.look("", true)
	x := <-ready
	for name, c := range map[string]struct {
		kind websocket.MessageType
		data string
		code websocket.StatusCode
	}{
		"too large": {websocket.MessageBinary, strings.Repeat("x", 300<<10), websocket.StatusMessageTooBig},
		"no JSON":   {websocket.MessageText, "resize", 4003},
	} {
		if name == "no JSON" {
			g.say(websocket.MessageText, `{"type":"of a later version"}`)
			g.say(websocket.MessageText, `{"type":"resize","columns":0,"rows":5000}`)
		}
		g.say(c.kind, c.data)
		require.Equal(t, c.code, g.closed(), name)
		g = w.look("?execution="+g.exec, true)
	}
	require.False(t, x.state().Over())
	require.Equal(t, uint32(80), x.state().TerminalSize().GetColumns())
	x.complete(0)
	g.told("exit")
}

// upgrade is a request for a WebSocket, whose answers are those of any other route where it is refused.
func (b *boxes) upgrade(query string, headers ...string) answer {
	return b.send("GET", "/sandboxes/demo/pty"+query, nil, append([]string{
		"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
	}, headers...)...)
}

func TestRefusalsOfTerminals(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("plain", func(x *execution) { x.complete(0) })
	plain := drainStream(w.exec(w.t.Context(), w.send("GET", "/sandboxes/demo", nil).is(t, 200)["id"].(string), "plain")).completed.GetExecId()
	w.send("GET", "/sandboxes/demo/pty", nil).refused(t, 422, "validation")
	w.send("GET", "/sandboxes/demo/pty", nil, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13").refused(t, 422, "validation")
	for _, query := range []string{"cols=0", "rows=1001", "width=x", "term=a%20b", "execution=x", "after=1", "detach=maybe", "cols=-1"} {
		require.Contains(t, w.upgrade("?"+query).refused(t, 422, "validation"), strings.SplitN(query, "=", 2)[0])
	}
	w.upgrade("?execution=5d6f1a4e-7c1b-4f5e-9a57-0d8f0a1b2c3d").refused(t, 404, "exec_not_found")
	w.upgrade("?execution="+plain).refused(t, 409, "illegal_state")
	w.upgrade("", "Origin: https://elsewhere.example").refused(t, 403, "key_missing")

	keyed := newBoxes(t, map[string]string{"ann": "acme", "bob": "other"})
	keyed.with("X-Sandrpod-Token: " + secret("ann")).made("demo")
	keyed.upgrade("").refused(t, 401, "key_missing")
	keyed.upgrade("", "X-Sandrpod-Token: "+secret("bob")).refused(t, 404, "sandbox_not_found")
	keyed.upgrade("", "X-Sandrpod-Token: "+secret("ann"), "Origin: https://elsewhere.example").refused(t, 403, "origin_not_allowed")
	ann := keyed.with("X-Sandrpod-Token: " + secret("ann"))
	ann.peer.script("sh", func(x *execution) { x.complete(0) })
	g := ann.look("", true, "Origin: "+ann.base)
	g.told("exit")
}
