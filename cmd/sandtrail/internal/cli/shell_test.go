package cli_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
)

// asShell makes this test's program the command line itself.
const asShell = "SANDTRAIL_TEST_SHELL"

// link is one connection of a command line to a terminal that the test plays.
type link struct {
	t    *testing.T
	conn *websocket.Conn
	ask  url.Values
}

// terminals is a server whose connections the test gets.
func terminals(t *testing.T) (base string, links <-chan link) {
	t.Helper()
	c := make(chan link, 8)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/sandboxes/box/pty" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"m","error":{"code":"not_found","reason":"sandbox_not_found","message":"there is none"}}`)
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"sandtrail.terminal.v1"}})
		if err != nil {
			return
		}
		c <- link{t, conn, r.URL.Query()}
		<-t.Context().Done()
		_ = conn.CloseNow()
	}))
	t.Cleanup(s.CloseClientConnections)
	return s.URL, c
}

func (l link) say(kind websocket.MessageType, data string) {
	l.t.Helper()
	require.NoError(l.t, l.conn.Write(l.t.Context(), kind, []byte(data)))
}

func (l link) show(chunk uint64, data string) {
	l.t.Helper()
	l.say(websocket.MessageBinary, string(binary.BigEndian.AppendUint64(nil, chunk))+data)
}

// gets reads messages until their text is as wanted.
func (l link) gets(want string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	for got := ""; got != want; {
		_, data, err := l.conn.Read(ctx)
		require.NoError(l.t, err, "got %q", got)
		got += string(data)
		require.True(l.t, strings.HasPrefix(want, got), "%q", got)
	}
}

// seat is a terminal with the command line on it.
type seat struct {
	t      *testing.T
	ours   *os.File
	theirs *os.File
	cmd    *exec.Cmd
	was    *unix.Termios
	mu     sync.Mutex
	seen   bytes.Buffer
	over   chan error
}

func sit(t *testing.T, base string, args ...string) *seat {
	t.Helper()
	s := &seat{t: t, over: make(chan error, 1)}
	s.ours, s.theirs = pty(t)
	require.NoError(t, unix.IoctlSetWinsize(int(s.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 101, Row: 31}))
	s.was = s.termios()
	self, err := os.Executable()
	require.NoError(t, err)
	s.cmd = exec.CommandContext(t.Context(), self, append([]string{"shell", "--api-url", base}, args...)...)
	s.cmd.Env = append(os.Environ(), asShell+"=1", "HOME="+t.TempDir(), "TERM=xterm-of-the-test", "SANDTRAIL_API_KEY=", "SANDRPOD_API_TOKEN=")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.theirs, s.theirs, s.theirs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, s.cmd.Start())
	go func() { s.over <- s.cmd.Wait() }()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := s.ours.Read(buf)
			s.mu.Lock()
			s.seen.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the screen: %q", s.screen())
		}
		_ = s.theirs.Close()
		_ = s.ours.Close()
	})
	return s
}

func (s *seat) termios() *unix.Termios {
	m, err := unix.IoctlGetTermios(int(s.theirs.Fd()), unix.TCGETS)
	require.NoError(s.t, err)
	return m
}

func (s *seat) screen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

func (s *seat) shows(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.screen(), text) }, 20*time.Second, 5*time.Millisecond, "no %q in %q", text, s.screen())
}

func (s *seat) keys(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.ours, text)
	require.NoError(s.t, err)
}

// raw waits until keys are no longer the terminal's own business.
func (s *seat) raw() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.termios().Lflag&(unix.ECHO|unix.ISIG|unix.ICANON) == 0 }, 20*time.Second, 5*time.Millisecond)
}

// ends waits for the exit code, and looks whether the terminal is as it was.
func (s *seat) ends(code int) {
	s.t.Helper()
	select {
	case <-s.over:
	case <-time.After(20 * time.Second):
		require.Fail(s.t, "it does not end")
	}
	require.Equal(s.t, code, s.cmd.ProcessState.ExitCode())
	require.Equal(s.t, s.was, s.termios(), "the terminal is given back as it was")
}

func next(t *testing.T, links <-chan link) link {
	t.Helper()
	select {
	case l := <-links:
		return l
	case <-time.After(20 * time.Second):
		require.Fail(t, "nobody connects")
		return link{}
	}
}

func TestShellFromConnectToExit(t *testing.T) {
	base, links := terminals(t)
	s := sit(t, base, "box")
	l := next(t, links)
	require.Equal(t, "101 31 xterm-of-the-test", strings.Join([]string{l.ask.Get("cols"), l.ask.Get("rows"), l.ask.Get("term")}, " "))
	l.say(websocket.MessageText, `{"type":"hello","execution":"x1","input":0}`)
	s.raw()
	l.show(1, "\x1b[32m$\x1b[0m \xff\x00")
	s.shows("\x1b[32m$\x1b[0m \xff\x00")
	s.keys("ls\r\x03\x1a\x04")
	l.gets("ls\r\x03\x1a\x04")
	require.NoError(t, unix.IoctlSetWinsize(int(s.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 50, Row: 20}))
	l.gets(`{"type":"resize","columns":50,"rows":20}`)
	l.say(websocket.MessageText, `{"type":"of a later version"}`)
	l.say(websocket.MessageText, `{"type":"exit","code":7,"reason":"exited"}`)
	s.ends(7)
}

// A connection that breaks is made again behind what was shown, and what the server had not got of what was typed is sent again.
func TestShellComesBack(t *testing.T) {
	base, links := terminals(t)
	s := sit(t, base, "box")
	l := next(t, links)
	l.say(websocket.MessageText, `{"type":"hello","execution":"x1","input":0}`)
	l.show(41, "one ")
	s.shows("one ")
	s.keys("abcdef")
	l.gets("abcdef")
	require.NoError(t, l.conn.CloseNow())
	l = next(t, links)
	require.Equal(t, "x1 41", l.ask.Get("execution")+" "+l.ask.Get("after"))
	l.say(websocket.MessageText, `{"type":"hello","execution":"x1","input":4}`)
	l.gets("ef")
	require.NoError(t, l.conn.Close(websocket.StatusServiceRestart, ""))
	l = next(t, links)
	l.say(websocket.MessageText, `{"type":"hello","execution":"x1","input":6}`)
	l.show(42, "two")
	s.shows("two")
	s.keys("g")
	l.gets("g")
	l.say(websocket.MessageText, `{"type":"exit","code":0,"reason":"exited"}`)
	s.ends(0)
}

// However it ends, the terminal is given back, and modes that nobody would switch back are.
func TestShellGivesTheTerminalBack(t *testing.T) {
	base, links := terminals(t)
	for name, c := range map[string]struct {
		end  func(*seat, link)
		code int
		says string
	}{
		"left":       {func(s *seat, _ link) { s.keys("bye\x1d") }, 0, "--attach x1"},
		"terminated": {func(s *seat, _ link) { _ = s.cmd.Process.Signal(syscall.SIGTERM) }, cli.ExitCancelled, "interrupted"},
		"hung up":    {func(s *seat, _ link) { _ = s.cmd.Process.Signal(syscall.SIGHUP) }, cli.ExitCancelled, "interrupted"},
		"quit":       {func(s *seat, _ link) { _ = s.cmd.Process.Signal(syscall.SIGQUIT) }, cli.ExitCancelled, "interrupted"},
		"taken":      {func(_ *seat, l link) { l.say(websocket.MessageText, `{"type":"taken"}`) }, cli.ExitFailed, "somebody else"},
		"refused": {func(_ *seat, l link) {
			l.say(websocket.MessageText, `{"type":"error","error":{"code":"lost","reason":"exec_lost","message":"the sandbox is gone"}}`)
		}, cli.ExitUnknown, "the sandbox is gone"},
		"nonsense": {func(_ *seat, l link) {
			l.say(websocket.MessageText, `{"type":"error","error":{"code":"internal","reason":"internal","message":"something"}}`)
		}, cli.ExitFailed, "something"},
	} {
		t.Run(name, func(t *testing.T) {
			s := sit(t, base, "box")
			l := next(t, links)
			l.t = t
			l.say(websocket.MessageText, `{"type":"hello","execution":"x1","input":0}`)
			s.raw()
			l.show(1, "\x1b[?1049h\x1b[?25l\x1b[?1002hfull screen")
			s.shows("full screen")
			c.end(s, l)
			s.ends(c.code)
			s.shows("\x1b[?25h\x1b[?1002l\x1b[?1049l\x1b[0m")
			s.shows(c.says)
		})
	}
}

func TestShellIsRefused(t *testing.T) {
	base, _ := terminals(t)
	s := sit(t, base, "nobody")
	s.ends(cli.ExitNotFound)
	s.shows("there is none")
	f := newFake(t)
	require.Equal(t, cli.ExitUsage, f.run(t, "shell", "box").code, "what is no terminal gets none")
}
