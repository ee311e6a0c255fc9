package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/toolbox/guest"
)

// link talks to the guest's init over its standard input and output. That this process holds the other end is also what
// keeps the sandbox alive.
type link struct {
	mu      sync.Mutex
	in      *os.File
	out     *os.File
	answers *bufio.Reader
	errs    *os.File
	// stale counts answers that are still to come, those of requests that were given up included.
	stale   int
	closing sync.Once
}

// newLink makes the pipes; the second result is what init gets.
func newLink() (*link, [3]*os.File, error) {
	var ours, theirs [3]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ours[:i])
			closeAll(theirs[:i])
			return nil, theirs, fmt.Errorf("make pipes for init: %w", err)
		}
		ours[i], theirs[i] = r, w
		if i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	l := &link{in: ours[0], out: ours[1], answers: bufio.NewReaderSize(ours[1], 256), errs: ours[2]}
	// What runsc and init say there is not for us, but must not fill the pipe.
	go func() { _, _ = io.Copy(io.Discard, l.errs) }()
	return l, theirs, nil
}

func (l *link) close() {
	l.closing.Do(func() { closeAll([]*os.File{l.in, l.out, l.errs}) })
}

func (l *link) ready(within time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, err := l.read(within)
	if err == nil && line != guest.Ready {
		err = errors.New("unexpected first line")
	}
	return err
}

func (l *link) read(within time.Duration) (string, error) {
	if err := l.out.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	line, err := l.answers.ReadSlice('\n')
	return strings.TrimSpace(string(line)), err
}

// linkTimeout bounds one request. Init runs in the sandbox, with the CPU that the programs leave it.
const linkTimeout = 20 * time.Second

// kill signals every process with the group and says how many there were; signal 0 only counts.
func (l *link) kill(group uint32, signal syscall.Signal) (int, error) {
	return l.ask(fmt.Sprintf("kill %d %d\n", group, signal))
}

// killAll signals every process of the sandbox but init.
func (l *link) killAll(signal syscall.Signal) error {
	_, err := l.ask(fmt.Sprintf("all %d\n", signal))
	return err
}

// name sets the sandbox's name inside; init may do that once.
func (l *link) name(to string) error {
	_, err := l.ask("name " + to + "\n")
	return err
}

func (l *link) ask(request string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := io.WriteString(l.in, request); err != nil {
		return 0, fmt.Errorf("ask init: %w", err)
	}
	l.stale++
	var line string
	for l.stale > 0 {
		var err error
		if line, err = l.read(linkTimeout); err != nil {
			return 0, fmt.Errorf("ask init: %w", err)
		}
		l.stale--
	}
	n, err := strconv.Atoi(line)
	if err != nil {
		return 0, fmt.Errorf("ask init: %s", line)
	}
	return n, nil
}
