package terminal

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// drainGrace is how long output may come behind the end of the leader, from others on its terminal.
	drainGrace = 50 * time.Millisecond
	// drainBytes bounds what is read after that: more than a terminal holds, not what goes on being written.
	drainBytes = 256 << 10
	// gather is how long more output may come behind a small piece that was written so short a time ago: programs write to a terminal
	// line by line, and each piece costs everybody on its way.
	gather = 2 * time.Millisecond
	piece  = 1 << 10
	// hangUpAfter is how long a program may take to end by TERM before its terminal is taken away, which is how a shell that somebody
	// types to is ended: it does not listen to TERM.
	hangUpAfter = 500 * time.Millisecond
	// defaultTerm is what the terminal is where the environment does not say.
	defaultTerm = "TERM=xterm-256color"
)

// helper holds a terminal and the program on it.
type helper struct {
	master *os.File
	leader *os.Process
	ended  chan struct{}
}

// Main runs argv on a new terminal until it ends, and returns its exit code. One that a signal ended takes the helper along by the
// same signal. It is the whole of a process.
func Main(argv []string) int {
	// The program on the terminal shall have the memory and the threads.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	syscall.CloseOnExec(sizesFD)
	syscall.CloseOnExec(saidFD)
	sizes, said := os.NewFile(sizesFD, "sizes"), os.NewFile(saidFD, "said")
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
	h, slave, err := start(argv, sizes)
	if err != nil {
		var why StartError
		if !errors.As(err, &why) {
			why = ErrOther
		}
		_, _ = said.Write([]byte{byte(why)})
		return 127
	}
	if _, err := said.Write([]byte{0}); err != nil {
		return 127
	}
	said.Close()
	go h.forward(signals)
	go h.typed(os.Stdin)
	go h.resized(sizes)
	return h.serve(slave, os.Stdout)
}

// start makes the terminal and starts argv on it. The slave is the helper's own, so that the terminal lives while nobody has it open.
func start(argv []string, sizes io.Reader) (*helper, *os.File, error) {
	if len(argv) == 0 {
		return nil, nil, ErrOther
	}
	first, err := nextSize(sizes)
	if err != nil {
		return nil, nil, ErrOther
	}
	program, err := look(argv[0])
	if err != nil {
		return nil, nil, err
	}
	master, slave, err := open()
	if err != nil {
		return nil, nil, ErrNoTerminal
	}
	if err := errors.Join(resize(master, first), prepare(master)); err != nil {
		return nil, nil, ErrNoTerminal
	}
	env := os.Environ()
	if os.Getenv("TERM") == "" {
		env = append(env, defaultTerm)
	}
	leader, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{slave, slave, slave}, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true},
	})
	if err != nil {
		return nil, nil, startFault(err)
	}
	return &helper{master: master, leader: leader, ended: make(chan struct{})}, slave, nil
}

func look(name string) (string, error) {
	program, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return program, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", ErrNotFound
	default:
		return "", ErrNotExecutable
	}
}

func startFault(err error) StartError {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return ErrNoProcesses
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.E2BIG):
		return ErrNotExecutable
	default:
		return ErrOther
	}
}

// serve carries output until the leader has ended, and what is left of it then.
func (h *helper) serve(slave *os.File, out io.Writer) int {
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		h.show(out)
	}()
	state, err := h.leader.Wait()
	close(h.ended)
	slave.Close()
	_ = h.master.SetReadDeadline(time.Now().Add(drainGrace))
	<-shown
	if err != nil {
		return 127
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return dieBy(status.Signal())
	}
	return state.ExitCode()
}

// show copies what the terminal shows, up to its end.
func (h *helper) show(out io.Writer) {
	buf := make([]byte, 32<<10)
	var last time.Time
	for {
		n, err := h.master.Read(buf)
		if n > 0 {
			if n < piece && time.Since(last) < gather {
				<-time.After(gather)
				n += h.ready(buf[n:])
			}
			if _, err := out.Write(buf[:n]); err != nil {
				return
			}
			last = time.Now()
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			h.rest(out, buf)
			return
		default:
			return
		}
	}
}

// rest copies what the terminal holds without waiting for more: writing what came before may have taken longer than the grace.
func (h *helper) rest(out io.Writer, buf []byte) {
	for left := drainBytes; left > 0; {
		n := h.ready(buf)
		if n == 0 {
			return
		}
		if _, err := out.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}

// ready reads what the terminal holds.
func (h *helper) ready(buf []byte) (n int) {
	for n < len(buf) {
		var one int
		var err error
		if control(h.master, func(fd int) { one, err = unix.Read(fd, buf[n:]) }) != nil {
			return n
		}
		if err == unix.EINTR {
			continue
		}
		if one <= 0 {
			return n
		}
		n += one
	}
	return n
}

// typed gives the terminal what comes on standard input. Its end is typed too: what reads lines reads the end of its input.
func (h *helper) typed(in io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 && h.keys(buf[:n]) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	if t, err := termios(h.master); err == nil {
		_, _ = h.master.Write([]byte{t.Cc[unix.VEOF]})
	}
}

// keys types data. A key that signals throws away what nobody has read yet, as it does on Linux: the sandbox's kernel looks at it only
// in its turn, behind a line that a busy program does not read.
func (h *helper) keys(data []byte) error {
	t, err := termios(h.master)
	if err != nil || t.Lflag&unix.ISIG == 0 || t.Lflag&unix.NOFLSH != 0 {
		_, err = h.master.Write(data)
		return err
	}
	for len(data) > 0 {
		n := signalling(data, t)
		if n > 0 {
			if _, err := h.master.Write(data[:n]); err != nil {
				return err
			}
		}
		if data = data[n:]; len(data) == 0 {
			break
		}
		if err := flushInput(h.master); err != nil {
			return err
		}
		if _, err := h.master.Write(data[:1]); err != nil {
			return err
		}
		data = data[1:]
	}
	return nil
}

// signalling is where the first key that signals stands; the length of data without one.
func signalling(data []byte, t *unix.Termios) int {
	for i, b := range data {
		// A key of 0 is none.
		if b != 0 && (b == t.Cc[unix.VINTR] || b == t.Cc[unix.VQUIT] || b == t.Cc[unix.VSUSP]) {
			return i
		}
	}
	return len(data)
}

// resized gives the terminal the sizes that come.
func (h *helper) resized(sizes io.Reader) {
	for {
		size, err := nextSize(sizes)
		if err != nil {
			return
		}
		_ = resize(h.master, size)
	}
}

// forward passes signals on to the leader.
func (h *helper) forward(signals <-chan os.Signal) {
	for s := range signals {
		_ = h.leader.Signal(s)
		if s != syscall.SIGTERM {
			continue
		}
		select {
		case <-h.ended:
			return
		case <-time.After(hangUpAfter):
			_ = h.leader.Signal(syscall.SIGHUP)
		}
	}
}

// dieBy ends this process by a signal.
func dieBy(s syscall.Signal) int {
	action := struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}{}
	// Past the runtime, which takes some signals for its own.
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	_ = syscall.Kill(os.Getpid(), s)
	// The signal may reach another thread a moment later.
	<-time.After(time.Second)
	return 128 + int(s)
}
