package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

// asProgram names a file; set, the test's binary is `sandtrail`: it completes, and writes any other command line there.
const asProgram = "SANDTRAIL_TEST_WORDS"

func TestMain(m *testing.M) {
	words := os.Getenv(asProgram)
	switch {
	case usageapp.IsEngine():
		os.Exit(usageapp.EngineMain())
	case os.Getenv(asShell) != "":
		os.Exit(cli.Main(os.Args[1:], cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Signals: func() (<-chan os.Signal, func()) {
			c := make(chan os.Signal, 2)
			signal.Notify(c, os.Interrupt, syscall.SIGTERM)
			return c, func() { signal.Stop(c) }
		}}))
	case words == "":
		os.Exit(m.Run())
	case len(os.Args) > 1 && slices.Contains([]string{"completion", "__complete"}, os.Args[1]):
		os.Exit(cli.Main(os.Args[1:], cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
	}
	// Renamed, so that who sees it sees all of it.
	err := os.WriteFile(words+".new", []byte(strings.Join(os.Args[1:], "\n")), 0o600)
	if err == nil {
		err = os.Rename(words+".new", words)
	}
	if err != nil {
		panic(err)
	}
}

// line is what somebody types, <tab> included, want the words that the program is then run with.
type line struct{ typed, want string }

var lines = []line{
	{"sandtrail des\tX", "describe X"},
	{"sandtrail ls --status rea\t", "ls --status ready"},
	{"sandtrail ls --outp\tjson", "ls --output json"},
	{"sandtrail ls --output=js\t", "ls --output=json"},
	{"sandtrail replay sand\tX", "replay sandbox X"},
	{"sandtrail topology di\t--output js\t", "topology diff --output json"},
	{"sandtrail cp some-fi\tX:", "cp some-file X:"},
	{"sandtrail exec X -- cat some-fi\t", "exec X -- cat some-file"},
}

func TestCompletionInBash(t *testing.T) {
	s := shell(t, "bash", "--noprofile", "--norc", "-i")
	require.NotNil(t, s)
	s.enter(t, "source <(sandtrail completion bash)\n")
	s.complete(t, lines...)
	// ESC * types all that completes.
	s.complete(t, line{"sandtrail ls --output=\x1b*", "ls --output=json table"})
}

func TestCompletionInZsh(t *testing.T) {
	t.Run("sourced", func(t *testing.T) {
		s := shell(t, "zsh", "-f", "-i")
		if s == nil {
			return
		}
		s.enter(t, "source <(sandtrail completion zsh)\n")
		s.complete(t, lines...)
	})
	t.Run("in fpath", func(t *testing.T) {
		s := shell(t, "zsh", "-f", "-i")
		if s == nil {
			return
		}
		s.enter(t, "sandtrail completion zsh > $HOME/_sandtrail; fpath=($HOME $fpath); autoload -Uz compinit; compinit -u\n")
		s.complete(t, lines...)
	})
}

func TestCompletionInFish(t *testing.T) {
	home, fish := program(t, "fish")
	if fish == "" {
		return
	}
	for _, c := range []struct {
		line string
		want []string
	}{
		{"sandtrail des", []string{"describe"}},
		{"sandtrail ls --status rea", []string{"ready"}},
		{"sandtrail ls --status ", []string{"destroyed", "failed", "ready", "starting"}},
		{"sandtrail ls --outp", []string{"--output"}},
		{"sandtrail ls --output=js", []string{"--output=json"}},
		{"sandtrail replay ", []string{"exec", "run", "sandbox", "tenant"}},
		{"sandtrail cp some-fi", []string{"some-file"}},
	} {
		cmd := exec.CommandContext(t.Context(), fish, "--no-config", "-c", "sandtrail completion fish | source; complete -C $argv[1]", c.line)
		cmd.Dir, cmd.Env = home, environment(home)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		var got []string
		for line := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t") // behind it stands what it is
			got = append(got, word)
		}
		require.Equal(t, c.want, got, c.line)
	}
}

// program makes a directory with one file in it and, on its PATH, a `sandtrail` that is this test. path is where the shell is,
// empty without one: nobody needs zsh or fish to work on this program.
func program(t *testing.T, shell string) (home, path string) {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Logf("not tested: there is no %s on this machine", shell)
		return "", ""
	}
	home = t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(home, "bin"), 0o700))
	require.NoError(t, os.Symlink(self, filepath.Join(home, "bin/sandtrail")))
	require.NoError(t, os.WriteFile(filepath.Join(home, "some-file"), nil, 0o600))
	return home, path
}

func environment(home string) []string {
	return append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home, "TERM=xterm",
		"PATH="+filepath.Join(home, "bin")+":"+os.Getenv("PATH"), asProgram+"="+filepath.Join(home, "words"))
}

// terminal is an interactive shell.
type terminal struct {
	home   string
	keys   io.Writer
	screen *bytes.Buffer
	done   chan struct{}
}

// shell starts one; nil where this machine has none of that name.
func shell(t *testing.T, name string, args ...string) *terminal {
	t.Helper()
	home, path := program(t, name)
	if path == "" {
		return nil
	}
	ours, theirs := pty(t)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir, cmd.Env = home, environment(home)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, theirs.Close())
	s := &terminal{home: home, keys: ours, screen: &bytes.Buffer{}, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		_, _ = io.Copy(s.screen, ours) // it fails when the shell has ended
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-s.done
		require.NoError(t, ours.Close())
		if t.Failed() {
			t.Logf("the screen: %q", s.screen)
		}
	})
	return s
}

func (s *terminal) enter(t *testing.T, keys string) {
	t.Helper()
	_, err := io.WriteString(s.keys, keys)
	require.NoError(t, err)
}

// complete types each line and compares what the shell runs.
func (s *terminal) complete(t *testing.T, all ...line) {
	t.Helper()
	for _, c := range all {
		s.enter(t, c.typed+"\n")
		words := filepath.Join(s.home, "words")
		var got []byte
		require.Eventually(t, func() bool {
			var err error
			got, err = os.ReadFile(words)
			return err == nil
		}, 30*time.Second, 10*time.Millisecond, "%q ran nothing", c.typed)
		require.Equal(t, c.want, strings.Join(strings.Fields(string(got)), " "), "%q", c.typed)
		require.NoError(t, os.Remove(words))
	}
}

// pty is a terminal: our end and the shell's.
func pty(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	fd := int(ours.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return ours, theirs
}
