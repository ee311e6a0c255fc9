package journal

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Program is what an exec is built to do: what it prints and how it ends follow from it alone, so both can be made again.
type Program struct {
	// Token is unique among all programs of a run and of [A-Za-z0-9-]: it marks the program's arguments, its output and its line
	// in the witness file, whatever id the exec gets.
	Token string `json:"token"`
	// Lines on each stream, each of Width bytes with its end; Width is at least 64. Lines of the two come in turns.
	StdoutLines uint64 `json:"stdout_lines,omitempty"`
	StderrLines uint64 `json:"stderr_lines,omitempty"`
	Width       uint64 `json:"width"`
	// Step is the pause behind each line; 0 is none.
	Step time.Duration `json:"step,omitempty"`
	// ExitCode is how it ends unless Signal is set or it is Endless.
	ExitCode int32 `json:"exit_code,omitempty"`
	// Signal: it ends itself with this one.
	Signal int32 `json:"signal,omitempty"`
	// Endless: behind its lines it waits until somebody ends it.
	Endless bool `json:"endless,omitempty"`
}

// Witness is the file in the workspace in which each start of a program leaves one line: its token.
const Witness = "chaos-witness"

// minWidth leaves room for a token and a number.
const minWidth = 64

// script is a program in POSIX shell. Its arguments: token, lines of stdout, lines of stderr, padding, seconds of pause or 0, how
// it ends. The witness comes first: a start that did anything has left its line.
// A disk that is full for a moment is waited for, silently: the program's output is fixed.
const script = `until { printf '%s\n' "$1" >> /workspace/` + Witness + `; } 2>/dev/null; do sleep 0.2; done
i=0
while [ $i -lt $2 ] || [ $i -lt $3 ]; do
  if [ $i -lt $2 ]; then printf '%s o %012d %s\n' "$1" $i "$4"; fi
  if [ $i -lt $3 ]; then printf '%s e %012d %s\n' "$1" $i "$4" >&2; fi
  i=$((i + 1))
  if [ "$5" != 0 ]; then sleep "$5"; fi
done
case $6 in
  endless) while :; do sleep 3600; done ;;
  signal*) kill -${6#signal} $$; while :; do sleep 3600; done ;;
  *) exit "$6" ;;
esac`

// Command is how the program is started: for ExecCommandRequest.command and args.
func (p Program) Command() (command string, args []string) {
	end := strconv.Itoa(int(p.ExitCode))
	switch {
	case p.Endless:
		end = "endless"
	case p.Signal != 0:
		end = "signal" + strconv.Itoa(int(p.Signal))
	}
	pause := "0"
	if p.Step > 0 {
		pause = strconv.FormatFloat(p.Step.Seconds(), 'f', -1, 64)
	}
	return "sh", []string{
		"-c", script, "chaos", p.Token, strconv.FormatUint(p.StdoutLines, 10), strconv.FormatUint(p.StderrLines, 10), p.padding(), pause, end,
	}
}

// TokenOf is the token of the program that a command starts; empty where it is none of ours.
func TokenOf(command string, args []string) string {
	if command != "sh" || len(args) != 9 || args[2] != "chaos" {
		return ""
	}
	return args[3]
}

// padding fills a line up to Width: the rest is "TOKEN o 000000000000 " and the line's end.
func (p Program) padding() string {
	used := uint64(len(p.Token)) + uint64(len(" o 000000000000 \n"))
	return strings.Repeat(".", int(max(p.Width, minWidth, used)-used)) //nolint:gosec // a width is small
}

// Output is all that the program writes to a stream, stdout or stderr, when nobody ends it before.
func (p Program) Output(stream string) []byte {
	lines, mark := p.StdoutLines, "o"
	if stream == "stderr" {
		lines, mark = p.StderrLines, "e"
	}
	var b bytes.Buffer
	pad := p.padding()
	for i := range lines {
		fmt.Fprintf(&b, "%s %s %012d %s\n", p.Token, mark, i, pad)
	}
	return b.Bytes()
}
