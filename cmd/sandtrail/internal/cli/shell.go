package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// Shell is `sandtrail shell`.
type Shell struct {
	Remote
	Attach string `placeholder:"ID" help:"Come back to a terminal that was left, by the id that was printed then."`
	Keep   bool   `help:"Let what runs in it live when you leave; otherwise it ends half a minute later."`
	Name   string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Help is printed below the flags.
func (s *Shell) Help() string {
	return "A login shell on a terminal of its own: bash where the image has it. Ctrl-] leaves. A connection that breaks is made again, and " +
		"nothing that was shown or typed is lost by that. The shell's exit code is this program's.\n\n" + exitHelp
}

const (
	// leaveKey is Ctrl-].
	leaveKey = 0x1d
	// comeBack is how long a broken connection is tried to be made again: so long the server keeps a terminal that nobody looks at.
	comeBack = 30 * time.Second
	// sendAtOnce is the most that goes in one message.
	sendAtOnce = 16 << 10
)

// visit is one at a terminal in a sandbox.
type visit struct {
	env  *Env
	api  *named.Client
	name string
	ask  named.TerminalOptions
	in   *os.File
	out  *os.File

	// restore gives the terminal back as it was, however often it is called.
	restore func()
	modes   modes
	typed   *typed
	// left closes when the person leaves.
	left    chan struct{}
	resized chan os.Signal
}

var errLeft = errors.New("left")

// Run opens a terminal in a sandbox.
func (s *Shell) Run(e *Env) error {
	in, inOK := e.Stdin.(*os.File)
	out, outOK := e.Stdout.(*os.File)
	if !inOK || !outOK || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return usagef("shell needs a terminal on stdin and stdout; `sandtrail execute %s COMMAND` does without", s.Name)
	}
	ctx, api, done, err := s.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	v := &visit{
		env: e, api: api, name: s.Name, in: in, out: out, restore: func() {}, typed: newTyped(),
		left: make(chan struct{}), resized: make(chan os.Signal, 1),
		ask: named.TerminalOptions{Term: os.Getenv("TERM"), Execution: s.Attach, Detach: s.Keep},
	}
	v.ask.Columns, v.ask.Rows = v.size()
	first, err := api.Terminal(ctx, s.Name, v.ask)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Stderr, "Connected to %q. Ctrl-] leaves.\n", s.Name)
	exit, err := v.run(ctx, first)
	switch {
	case errors.Is(err, errLeft):
		fmt.Fprintf(e.Stderr, "\nLeft. Come back with: sandtrail shell %s --attach %s\n", s.Name, v.ask.Execution)
		return nil
	case err != nil:
		return err
	}
	if exit.Reason != "exited" && exit.Reason != "signaled" {
		e.warn("%s", render.Clean(fmt.Sprintf("it ended: %s %s", exit.Reason, exit.Message)))
	}
	if exit.Code != 0 {
		return exitError(exit.Code)
	}
	return nil
}

func (v *visit) size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(v.out.Fd()))
	if err != nil || columns < 1 || rows < 1 {
		return 80, 24
	}
	return min(columns, 1000), min(rows, 1000)
}

// run has the terminal until the visit is over. It is given back however that comes about, but for a KILL.
func (v *visit) run(ctx context.Context, t *named.Terminal) (*named.TerminalExit, error) {
	was, err := term.MakeRaw(int(v.in.Fd()))
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	var once sync.Once
	v.restore = func() {
		once.Do(func() { _ = term.Restore(int(v.in.Fd()), was) })
	}
	defer v.restore()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGHUP, syscall.SIGQUIT)
	signal.Notify(v.resized, syscall.SIGWINCH)
	defer signal.Stop(ends)
	defer signal.Stop(v.resized)
	go v.guarded(func() {
		select {
		case <-ends:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	})
	go v.guarded(func() { v.read(ctx) })
	exit, err := v.follow(ctx, t)
	if back, switched := v.modes.back(); err != nil || switched {
		_, _ = v.out.WriteString(back) // nobody looks any more if this fails
	}
	return exit, err
}

// guarded runs what runs beside: a panic there ends the program without the deferred calls of this one.
func (v *visit) guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			v.restore()
			panic(p)
		}
	}()
	f()
}

// read takes what is typed until the key to leave.
func (v *visit) read(ctx context.Context) {
	buf := make([]byte, 4<<10)
	for {
		n, err := v.in.Read(buf)
		data, leave := buf[:n], err != nil
		if i := bytes.IndexByte(data, leaveKey); i >= 0 {
			data, leave = data[:i], true
		}
		for len(data) > 0 && !v.typed.add(data) {
			select {
			case <-v.typed.room:
			case <-ctx.Done():
				return
			}
		}
		if leave {
			close(v.left)
			return
		}
	}
}

// follow goes from connection to connection until the visit is over.
func (v *visit) follow(ctx context.Context, t *named.Terminal) (*named.TerminalExit, error) {
	for {
		v.ask.Execution = t.Execution
		v.typed.from(t.Input)
		exit, err := v.serve(ctx, t)
		if !again(err) {
			return exit, err
		}
		fmt.Fprint(v.env.Stderr, "\r\n[the connection broke; it is made again]\r\n")
		if t, err = v.reconnect(ctx); err != nil {
			return nil, err
		}
	}
}

// again reports whether a failure is one of the connection alone.
func again(err error) bool { return err != nil && fault.CodeOf(err) == fault.Unavailable }

// reconnect comes back to the terminal, behind what was shown.
func (v *visit) reconnect(ctx context.Context) (*named.Terminal, error) {
	end := time.Now().Add(comeBack)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		v.ask.Columns, v.ask.Rows = v.size()
		t, err := v.api.Terminal(ctx, v.name, v.ask)
		if err == nil || !again(err) {
			return t, err
		}
		if time.Now().After(end) {
			return nil, fault.Newf(fault.Lost, fault.ReasonExecLost, "the connection to the terminal broke and cannot be made again (%s); what runs there may still: "+
				"sandtrail shell %s --attach %s", fault.From(err).Message, v.name, v.ask.Execution)
		}
		select {
		case <-v.left:
			return nil, errLeft
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// serve carries what is shown and typed until the connection ends.
func (v *visit) serve(ctx context.Context, t *named.Terminal) (*named.TerminalExit, error) {
	wire, cut := context.WithCancel(ctx)
	type outcome struct {
		exit *named.TerminalExit
		err  error
	}
	over := make(chan outcome, 1)
	defer func() {
		cut()
		t.Close()
		select {
		case <-over:
		case <-time.After(time.Second): // this terminal shows nothing any more
		}
	}()
	go v.guarded(func() {
		exit, err := v.show(wire, t)
		over <- outcome{exit, err}
		close(over)
	})
	if t.Typing {
		go v.guarded(func() { v.send(wire, t) })
	}
	for {
		select {
		case o := <-over:
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return o.exit, o.err
		case <-v.resized:
			columns, rows := v.size()
			_ = t.Resize(wire, columns, rows) // a connection that broke says so elsewhere
		case <-v.left:
			t.Leave()
			return nil, errLeft
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// show writes what the terminal shows.
func (v *visit) show(ctx context.Context, t *named.Terminal) (*named.TerminalExit, error) {
	for {
		s, err := t.Next(ctx)
		switch {
		case err != nil:
			return nil, err
		case s.Exit != nil:
			return s.Exit, nil
		case s.Dropped > 0:
			fmt.Fprintf(v.env.Stderr, "\r\n[%d bytes are missing here]\r\n", s.Dropped)
			continue
		}
		if _, err := v.out.Write(s.Data); err != nil {
			return nil, fmt.Errorf("write the terminal's output: %w", err)
		}
		v.modes.see(s.Data)
		v.ask.After = max(v.ask.After, s.Chunk)
	}
}

// send sends what is typed.
func (v *visit) send(ctx context.Context, t *named.Terminal) {
	for {
		data := v.typed.next(sendAtOnce)
		if len(data) == 0 {
			select {
			case <-v.typed.more:
				continue
			case <-ctx.Done():
				return
			}
		}
		if t.Type(ctx, data) != nil {
			return // the connection is gone, which its reader says
		}
		v.typed.gone(len(data))
	}
}
