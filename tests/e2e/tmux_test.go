package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// tmux is a real terminal with a shell of this host on it: it draws what programs send, and answers what they ask a terminal.
type tmux struct {
	t      *testing.T
	socket string
	env    []string
}

func startTmux(t *testing.T, env []string) *tmux {
	t.Helper()
	w := &tmux{t: t, socket: filepath.Join(t.TempDir(), "tmux"), env: env}
	w.run("-f", "/dev/null", "new-session", "-d", "-s", "seat", "-x", "100", "-y", "30", "env PS1='here> ' sh")
	t.Cleanup(func() { w.run("kill-server") })
	w.shows("here>")
	return w
}

func (w *tmux) run(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", w.socket}, args...)...)
	cmd.Env = w.env
	out, err := cmd.CombinedOutput()
	require.NoError(w.t, err, "tmux %s: %s", args, out)
	return string(out)
}

// types sends text as it is, press a key by tmux's name of it, paste what a clipboard holds.
func (w *tmux) types(text string) { w.t.Helper(); w.run("send-keys", "-t", "seat", "-l", "--", text) }
func (w *tmux) press(key string)  { w.t.Helper(); w.run("send-keys", "-t", "seat", key) }
func (w *tmux) enters(text string) {
	w.t.Helper()
	w.types(text)
	w.press("Enter")
}

func (w *tmux) paste(text string) {
	w.t.Helper()
	w.run("set-buffer", "-b", "clip", "--", text)
	w.run("paste-buffer", "-p", "-r", "-b", "clip", "-t", "seat")
}

// screen is what a person sees; colours are kept where styled.
func (w *tmux) screen(styled bool) string {
	w.t.Helper()
	args := []string{"capture-pane", "-p", "-t", "seat"}
	if styled {
		args = append(args, "-e")
	}
	return w.run(args...)
}

// is asks what tmux knows of the terminal's state.
func (w *tmux) is(format string) string {
	w.t.Helper()
	return strings.TrimSpace(w.run("display-message", "-p", "-t", "seat", "#{"+format+"}"))
}

func (w *tmux) until(what string, is func() bool) {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the screen:\n%s", w.screen(true))
		}
	}()
	require.Eventually(w.t, is, time.Minute, 20*time.Millisecond, "%s", what)
}

func (w *tmux) shows(text string) {
	w.t.Helper()
	w.until("no "+text+" on the screen", func() bool { return strings.Contains(w.screen(false), text) })
}

// lines are those of the screen that are just that text.
func (w *tmux) lines(text string) (n int) {
	w.t.Helper()
	for line := range strings.Lines(w.screen(false)) {
		if strings.TrimSpace(line) == text {
			n++
		}
	}
	return n
}

// runs starts a program of the shell and waits until it has the terminal: what is typed before that is the shell's.
func (w *tmux) runs(program string) {
	w.t.Helper()
	n := w.lines("begun")
	w.enters(`sh -c 'echo beg""un; exec ` + program + `'`)
	w.until(program+" to run", func() bool { return w.lines("begun") == n+1 })
}

func tmuxInASandbox(t *testing.T) *tmux {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	s := stack.Up(t)
	env := append(os.Environ(), "SANDTRAIL_API_URL=http://"+s.HTTP, "SANDTRAIL_CONFIG="+filepath.Join(t.TempDir(), "none"),
		"PATH="+stack.Bin(t)+":"+os.Getenv("PATH"), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	create := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), "create", "tmux")
	create.Env = env
	out, err := create.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		end := exec.Command(filepath.Join(stack.Bin(t), "sandtrail"), "delete", "tmux")
		end.Env = env
		out, err := end.CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	w := startTmux(t, env)
	w.enters("stty -g >" + w.socket + ".before")
	w.enters("sandtrail shell tmux")
	w.shows("Connected to")
	w.enters("PS1='th''ere> '; clear")
	w.shows("there>")
	return w
}

func TestATerminalDrawsAShellInASandbox(t *testing.T) {
	w := tmuxInASandbox(t)
	w.enters(`printf '\033[1;32m%s\033[0m \342\202\254\n' gre""en`)
	w.shows("green €")
	require.Regexp(t, `\x1b\[[0-9;]*32m[^\n]*green`, w.screen(true))
	w.run("resize-window", "-t", "seat", "-x", "70", "-y", "20")
	w.enters("stty size")
	w.shows("20 70")
	// A program that takes the whole screen and gives it back.
	w.enters(`printf '\033[?1049h\033[2J\033[5;10Hfull'; read x; printf '\033[?1049l'`)
	w.until("the other screen", func() bool { return w.is("alternate_on") == "1" && strings.Contains(w.screen(false), "full") })
	require.NotContains(t, w.screen(false), "green")
	w.press("Enter")
	w.until("the screen before it", func() bool { return w.is("alternate_on") == "0" })
	w.shows("green")
	// Keys that are several bytes: the line is edited, and comes again from the shell's memory.
	w.types("echo bc")
	for _, key := range []string{"Left", "Left"} {
		w.press(key)
	}
	w.types("a")
	w.press("C-e")
	w.enters("d")
	w.until("an edited line", func() bool { return w.lines("abcd") == 1 })
	w.press("Up")
	w.press("Enter")
	w.until("the line again", func() bool { return w.lines("abcd") == 2 })
	// Job control.
	w.runs("sleep 600")
	w.press("C-z")
	w.shows("Stopped")
	w.enters(`bg; kill %1; wait; echo no""ne left`)
	w.shows("none left")
}

// What is pasted stays on the line until it is sent, however many lines it has: bash asks for that, and the terminal marks where a paste
// begins and ends.
func TestAPasteOfSeveralLinesRunsNothingByItself(t *testing.T) {
	w := tmuxInASandbox(t)
	w.paste("echo fir\"\"st\necho sec\"\"ond")
	w.shows(`echo sec""ond`)
	w.enters("")
	w.until("what was pasted has run", func() bool { return w.lines("first") == 1 && w.lines("second") == 1 })
	large := strings.Repeat("x", 60_000)
	w.runs("cat >large")
	// Lines no longer than a terminal takes.
	for piece := 0; piece < len(large); piece += 3000 {
		w.run("set-buffer", "-b", "clip", "--", large[piece:min(piece+3000, len(large))]+"\n")
		w.run("paste-buffer", "-r", "-b", "clip", "-t", "seat")
	}
	w.press("C-d")
	w.enters("clear; tr -d '\\n' <large | wc -c")
	w.until("every byte of it", func() bool { return w.lines("60000") == 1 })
}

// However it ends, the terminal of this host is as it was: its modes, its screen, its cursor.
func TestTheTerminalIsGivenBackHoweverAShellEnds(t *testing.T) {
	for how, end := range map[string]func(w *tmux){
		"it is left":        func(w *tmux) { w.press("C-]") },
		"it is terminated":  func(w *tmux) { w.run("run-shell", "pkill -TERM -P #{pane_pid} sandtrail") },
		"it is interrupted": func(w *tmux) { w.run("run-shell", "pkill -INT -P #{pane_pid} sandtrail") },
		"the shell exits":   func(w *tmux) { w.press("Enter") },
	} {
		t.Run(how, func(t *testing.T) {
			w := tmuxInASandbox(t)
			// The other screen, no cursor, mouse and application keys.
			w.enters(`printf '\033[?1049h\033[?25l\033[?1000h\033[?1h'; read x; exit 3`)
			w.until("a program has the screen", func() bool {
				return w.is("alternate_on") == "1" && w.is("cursor_flag") == "0" && w.is("mouse_any_flag") == "1"
			})
			end(w)
			w.until("the screen is back", func() bool { return w.is("alternate_on") == "0" && w.is("pane_current_command") == "sh" })
			require.Equal(t, "1", w.is("cursor_flag"), "the cursor")
			require.Equal(t, "0", w.is("mouse_any_flag"), "the mouse")
			require.Equal(t, "0", w.is("keypad_cursor_flag"), "the keys")
			w.enters("stty -g >" + w.socket + ".after; echo wri\"\"tten")
			w.shows("written")
			before, err := os.ReadFile(w.socket + ".before")
			require.NoError(t, err)
			after, err := os.ReadFile(w.socket + ".after")
			require.NoError(t, err)
			require.Equal(t, string(before), string(after))
		})
	}
}
