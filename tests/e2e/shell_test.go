package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// seat is a terminal with a program on it.
type seat struct {
	t    *testing.T
	ours *os.File
	cmd  *exec.Cmd

	mu   sync.Mutex
	seen bytes.Buffer
}

// sit runs a program on a terminal of its own.
func sit(t *testing.T, cmd *exec.Cmd, columns, rows uint16) *seat {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	fd := int(ours.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	s := &seat{t: t, ours: ours, cmd: cmd}
	s.size(columns, rows)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, theirs.Close())
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			s.mu.Lock()
			s.seen.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = ours.Close()
	})
	return s
}

func (s *seat) size(columns, rows uint16) {
	s.t.Helper()
	require.NoError(s.t, unix.IoctlSetWinsize(int(s.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

// keys types; shows waits until something new is on the screen.
func (s *seat) keys(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.ours, text)
	require.NoError(s.t, err)
}

func (s *seat) shows(text string) {
	s.t.Helper()
	found := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := strings.Index(s.seen.String(), text)
		if i >= 0 {
			s.seen.Next(i + len(text))
		}
		return i >= 0
	}
	require.Eventually(s.t, found, time.Minute, 10*time.Millisecond, "no %q in %q", text, &s.seen)
}

// A shell in a sandbox as a person has it: colours, sizes, keys that signal, its exit code, and all of it in the log.
func TestShellInASandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	s := stack.Up(t)
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), args...)
		cmd.Env = append(os.Environ(), "SANDTRAIL_API_URL=http://"+s.HTTP, "SANDTRAIL_ADDR="+s.GRPC, "SANDTRAIL_CONFIG="+filepath.Join(t.TempDir(), "none"))
		return cmd
	}
	out, err := run("create", "box").CombinedOutput()
	require.NoError(t, err, "%s", out)
	v := sit(t, run("shell", "box"), 101, 33)
	v.shows("Connected to")
	v.keys("PS1='> '; stty size; printf '\\033[1;32mgre''en\\033[0m\\n'\r")
	v.shows("33 101")
	v.shows("\x1b[1;32mgreen\x1b[0m")
	v.keys(`sh -c 'echo be""gun; exec sleep 600'` + "\r")
	v.shows("begun")
	v.keys("\x03")
	v.shows("> ")
	v.keys("echo code=$?.\r")
	v.shows("code=130.")
	v.size(77, 22)
	v.keys(`while [ "$(stty size)" != "22 77" ]; do :; done; echo resi""zed; exit 9` + "\r")
	v.shows("resized")
	_ = v.cmd.Wait()
	require.Equal(t, 9, v.cmd.ProcessState.ExitCode())

	list, err := run("logs", "box").Output()
	require.NoError(t, err)
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).FindAllString(string(list), -1)
	require.NotEmpty(t, id, "%s", list)
	cast, err := run("replay", "exec", id[len(id)-1], "--asciicast", "-").Output()
	require.NoError(t, err)
	require.Contains(t, string(cast), `"width":101,"height":33`)
	require.Contains(t, string(cast), `"r","77x22"]`)
	require.Contains(t, string(cast), "resized")
}
