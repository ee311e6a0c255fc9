package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// child is one process of the engine.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *tail
	ports ports
	// done is closed when the process has ended; err is set before that.
	done chan struct{}
	err  error
}

// startChild starts this very program again as the engine. The child holds lock open too: the data directory is taken for as
// long as any of the two lives.
func startChild(cfg childConfig, lock *os.File) (*child, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode child configuration: %w", err)
	}
	c := &child{out: &tail{}, done: make(chan struct{})}
	// Through /proc the child is this program even if its file was replaced by an upgrade.
	c.cmd = exec.Command("/proc/self/exe")
	c.cmd.Args = []string{"sandtrail-clickhouse"}
	c.cmd.Env = []string{childEnv + "=" + string(b), "TZ=UTC", "PATH=" + os.Getenv("PATH"), "HOME=" + cfg.Dir}
	c.cmd.Dir = cfg.Dir
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.ExtraFiles = []*os.File{lock}
	// Its own group: an interrupt from the terminal is for the parent, who ends the child last.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("pipe to the engine: %w", err)
	}
	started := make(chan error)
	go func() {
		// The death signal is sent when the thread that forked ends, so that thread must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	return c, nil
}

// awaitReady waits for the ready file. An error holds what the engine said.
func (c *child) awaitReady(ctx context.Context, path string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if p, ok := readReady(path); ok {
			c.ports = p
			return nil
		}
		select {
		case <-c.done:
			return fault.New(fault.Unavailable, fault.ReasonInternal, "the built-in ClickHouse did not start").Because(c.failure())
		case <-ctx.Done():
			return fault.New(fault.Unavailable, fault.ReasonTimeout, "the built-in ClickHouse did not start in time").Because(ctx.Err())
		case <-tick.C:
		}
	}
}

// end closes the child's standard input and kills it when it still runs after patience.
func (c *child) end(patience time.Duration) {
	_ = c.stdin.Close()
	select {
	case <-c.done:
		return
	case <-time.After(patience):
	}
	_ = c.cmd.Process.Kill()
	<-c.done
}

// failure is why it ended, with the last that it said.
func (c *child) failure() error {
	err := c.err
	if err == nil {
		err = errors.New("ended by itself")
	}
	return fmt.Errorf("%w: %s", err, c.out)
}

// tail keeps the last 4 KiB of what was written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
