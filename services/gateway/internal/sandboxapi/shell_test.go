package sandboxapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/talk"
)

// process is a shell of this host that is talked to.
type process struct {
	cmd *exec.Cmd
	in  io.Writer

	mu     sync.Mutex
	taken  uint64
	chunks []*transcript.Chunk
	open   int
	woken  chan struct{}
}

// shellOf starts one by a program in the way of a session, in an empty directory.
func shellOf(t *testing.T, argv ...string) *process {
	t.Helper()
	l := &process{cmd: exec.Command(argv[0], argv[1:]...), woken: make(chan struct{}), open: 2} //nolint:gosec,noctx // ended below
	l.cmd.Dir = t.TempDir()
	l.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.cmd.Dir}
	in, err := l.cmd.StdinPipe()
	require.NoError(t, err)
	l.in = in
	out, err := l.cmd.StdoutPipe()
	require.NoError(t, err)
	diag, err := l.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, l.cmd.Start())
	for stream, from := range map[string]io.Reader{transcript.Stdout: out, transcript.Stderr: diag} {
		go l.read(stream, from)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = l.cmd.Process.Kill()
		_ = l.cmd.Wait()
	})
	_, err = l.Write(t.Context(), 0, []byte(shellPrelude))
	require.NoError(t, err)
	return l
}

func (l *process) read(stream string, from io.Reader) {
	buf := make([]byte, 1000)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		if n > 0 {
			l.chunks = append(l.chunks, &transcript.Chunk{Stream: stream, Data: bytes.Clone(buf[:n])})
		}
		if err != nil {
			l.open--
		}
		close(l.woken)
		l.woken = make(chan struct{})
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (l *process) Write(_ context.Context, _ uint64, data []byte) (uint64, error) {
	n, err := l.in.Write(data)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken += uint64(n)
	if err != nil {
		return l.taken, errors.Join(talk.ErrEnded, err)
	}
	return l.taken, nil
}

func (l *process) Last(context.Context) (uint64, error) { return 0, nil }

func (l *process) Follow(ctx context.Context, after uint64, each func(*transcript.Chunk) error) error {
	for {
		l.mu.Lock()
		fresh, open, woken := l.chunks[after:], l.open, l.woken
		l.mu.Unlock()
		for _, c := range fresh {
			if err := each(c); err != nil {
				return err
			}
			after++
		}
		if len(fresh) > 0 {
			continue
		}
		if open == 0 {
			return nil
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// spoken is a conversation with a shell, and what its last answer brought.
type spoken struct {
	t *testing.T
	*process
	conv     *talk.Conversation
	out, err string
	state    shellState
}

func speak(t *testing.T, argv ...string) *spoken {
	t.Helper()
	s := &spoken{t: t, process: shellOf(t, argv...)}
	var err error
	s.conv, err = talk.Open(t.Context(), s.process)
	require.NoError(t, err)
	t.Cleanup(s.conv.Close)
	return s
}

func (s *spoken) ask(within time.Duration, text func(token string) string) error {
	s.t.Helper()
	s.out, s.err = "", ""
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	token := talk.NewToken()
	a, err := s.conv.Ask(ctx, talk.Question{Text: text(token), Token: token, Answer: func(c *transcript.Chunk) {
		if c.Stream == transcript.Stdout {
			s.out += string(c.Data)
		} else {
			s.err += string(c.Data)
		}
	}})
	if err == nil {
		var ok bool
		s.state, ok = shellSaid(a)
		require.True(s.t, ok, "%q", a.Said)
	}
	return err
}

// run runs a command to its end and gives its code and output.
func (s *spoken) run(command string) (int, string) {
	s.t.Helper()
	err := s.ask(20*time.Second, func(token string) string { return shellQuestion(token, command) })
	require.NoError(s.t, err, "%s: %q %q", command, s.out, s.err)
	return int(s.state.code), s.out
}

func (s *spoken) gives(command string, code int, out string) {
	s.t.Helper()
	c, o := s.run(command)
	require.Equal(s.t, []any{code, out}, []any{c, o}, "%s: %q", command, s.err)
}

// interrupt is what is done to a command that takes too long; false: the shell does not come back.
func (s *spoken) interrupt(how force, within time.Duration) bool {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "sh", "-c", interruptScript, "sh", strconv.Itoa(s.state.pid), string(how)).CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	return s.ask(within, shellProbe) == nil
}

// everyShell runs a test with each shell that sessions have: bash as where the image has it, and the other one.
func everyShell(t *testing.T, test func(*testing.T, *spoken)) {
	t.Helper()
	for name, argv := range map[string][]string{"bash": {"sh", "-c", shellProgram}, "sh": {"sh", "-i"}} {
		t.Run(name, func(t *testing.T) {
			s := speak(t, argv...)
			s.gives(`if [ -n "${BASH_VERSION-}" ]; then echo bash; else echo sh; fi`, 0, name+"\n")
			test(t, s)
		})
	}
}

func TestAShellKeepsItsState(t *testing.T) {
	everyShell(t, func(t *testing.T, s *spoken) {
		s.gives("mkdir -p 'a b' && cd 'a b' && x='1  2' && export Y=3 && f() { echo \"f $x $1\"; return 7; }", 0, "")
		require.True(t, strings.HasSuffix(s.state.cwd, "/a b"), s.state.cwd)
		s.gives("f ü; pwd | grep -o '[^/]*$'", 0, "f 1  2 ü\na b\n")
		s.gives("f z", 7, "f 1  2 z\n")
		s.gives("echo $?", 0, "7\n")
		s.gives("printenv Y; set -- p q; alias l='echo aliased'", 0, "3\n")
		s.gives("l $#", 0, "aliased 2\n")
		s.gives("set -u; IFS=0123456789/; set -f", 0, "")
		s.gives(`echo "$x" *`, 0, "1  2 *\n")
		s.gives("set +u; unset IFS; unalias -a; set +f", 0, "")
		s.gives("echo still here", 0, "still here\n")
	})
}

func TestCommandsOfManyForms(t *testing.T) {
	everyShell(t, func(t *testing.T, s *spoken) {
		s.gives("cat <<'E'\nit's \"$x\" \\\nE\necho two", 0, "it's \"$x\" \\\ntwo\n")
		s.gives("for i in 1 2\ndo\n  echo $i # a comment\ndone", 0, "1\n2\n")
		s.gives("echo one; echo two >&2; (exit 5)", 5, "one\n")
		require.Equal(t, "two\n", s.err)
		s.gives("cat; read x || echo nothing", 0, "nothing\n")
		s.gives(`printf 'a\000\377\036b'`, 0, "a\x00\xff\x1eb")
		s.gives("# only a comment", 0, "")
		s.gives("true\n\n", 0, "")
		long := strings.Repeat("x", 60<<10)
		s.gives("echo "+long, 0, long+"\n")
		all := ""
		for c := 1; c < 256; c++ {
			all += string([]byte{byte(c)})
		}
		s.gives("cat <<'END'\n"+all+"\nEND\n", 0, all+"\n")
		s.gives("head -c 300000 /dev/zero | tr '\\0' y; echo", 0, strings.Repeat("y", 300000)+"\n")
	})
}

// Whatever a command does wrong, the next one works.
func TestCommandsThatGoWrong(t *testing.T) {
	everyShell(t, func(t *testing.T, s *spoken) {
		for _, command := range []string{
			"echo 'unfinished", "if true; then", ")", "nosuchcommand", "${x:?not set}", "set -u; echo $nosuch", "echo \"", "$(", "a=(", "exec 3</nosuch",
			". ./nosuch", "shift 99", "readonly r=1; r=2", "trap 'echo $BASH_COMMAND' DEBUG; false",
		} {
			code, _ := s.run(command)
			require.NotZero(t, code, command)
			_, out := s.run("set +u; trap - DEBUG INT 2>/dev/null; echo fine")
			require.Contains(t, out, "fine\n", command)
		}
	})
}

// Standard streams that a command takes away are there again behind it.
func TestStreamsOutliveACommand(t *testing.T) {
	everyShell(t, func(t *testing.T, s *spoken) {
		for _, command := range []string{"exec >out", "exec >&- 2>&-", "exec </nosuch", "exec 8>&- 9>&-", "exec 2>&1", "exec 8>out 9>out", "set -x; true", "set -v", "exec <out"} {
			s.run(command)
			s.gives("echo fine; echo wrong >&2", 0, "fine\n")
			require.Contains(t, s.err, "wrong\n", command)
			require.NotContains(t, s.err, "\x1e")
			s.run("set +xv")
		}
		s.gives("exec 5>five; echo a >&5", 0, "")
		s.gives("echo b >&5; cat five", 0, "a\nb\n")
		s.gives("(sleep 0.2; echo late) & echo now", 0, "now\n")
		s.gives("wait; echo done", 0, "late\ndone\n")
	})
}

// What takes too long is interrupted, and the shell goes on with all that it had.
func TestInterrupts(t *testing.T) {
	everyShell(t, func(t *testing.T, s *spoken) {
		s.gives("x=kept", 0, "")
		for command, how := range map[string]force{
			"sleep 1000": first, "while :; do :; done": first, "while sleep 1; do :; done": first, "sleep 1000 | cat; echo no": first,
			"cat /dev/zero | tr '\\0' '\\n' | grep x": first, "sh -c 'trap \"\" INT; sleep 1000; sleep 1000'": last,
		} {
			err := s.ask(300*time.Millisecond, func(token string) string { return shellQuestion(token, command) })
			require.ErrorIs(t, err, talk.ErrUnfinished, command)
			if how == last {
				require.False(t, s.interrupt(first, time.Second), command)
			}
			back := false
			for range 5 { // one that comes just when a program of a loop has ended by itself is not heard
				back = back || s.interrupt(how, 2*time.Second)
			}
			require.True(t, back, command)
			s.gives("echo $x", 0, "kept\n")
		}
		s.gives("sleep 1000 & bg=$!", 0, "")
		require.ErrorIs(t, s.ask(300*time.Millisecond, func(token string) string { return shellQuestion(token, "sleep 1000") }), talk.ErrUnfinished)
		require.True(t, s.interrupt(first, 20*time.Second))
		s.gives("kill -0 $bg && echo yes", 0, "yes\n")
	})
}

// A shell that ends says so.
func TestAShellThatEnds(t *testing.T) {
	for _, command := range []string{"echo bye; exit 3", "exec sh -c 'echo bye; exit 3'", "set -e; echo bye; (exit 3)"} {
		everyShell(t, func(t *testing.T, s *spoken) {
			err := s.ask(20*time.Second, func(token string) string { return shellQuestion(token, command) })
			require.ErrorIs(t, err, talk.ErrEnded)
			require.Equal(t, "bye\n", s.out)
		})
	}
}

// Of two who write a question at the same place, at most one is run, and whole; whoever comes later is answered.
func TestMixedQuestionsAreNotRun(t *testing.T) {
	everyShell(t, func(t *testing.T, s *spoken) {
		whole := func(command string) string { return "\n" + shellQuestion(talk.NewToken(), command) + "\n" }
		ran := map[string]int{}
		for cut := range whole("echo one >>ran") {
			one, other := whole("echo one >>ran"), whole("echo 'the other one' >>ran")
			text := one[:cut] + other[cut:]
			if cut%2 > 0 {
				text = other[:cut] + one[cut:]
			}
			_, err := s.Write(t.Context(), 0, []byte(text))
			require.NoError(t, err)
			_, out := s.run("cat ran 2>/dev/null; rm -f ran")
			ran[out]++
			require.Empty(t, s.err, "%q", text)
		}
		for out := range ran {
			require.Contains(t, []string{"", "one\n", "the other one\n"}, out)
		}
		require.Positive(t, ran[""])
	})
}
