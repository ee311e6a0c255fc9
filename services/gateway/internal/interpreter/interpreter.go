// Package interpreter is the Python program of a context, a stateful interpreter in a sandbox, and what is said to it. The program runs as an
// exec whose standard input stays open: requests go in as lines of JSON, answers come as lines of its stdout.
package interpreter

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/sandbox"
)

//go:embed worker.py
var worker []byte

//go:embed keeper.py
var keeper []byte

// Source is the program, which goes in as the beginning of standard input: what is no argument is not recorded with each start.
func Source() []byte { return slices.Concat(worker, []byte("\n\n"), keeper) }

// boot reads as many bytes of standard input as its last argument says, no byte more, and runs them.
const boot = `import os, sys
size, source = int(sys.argv[-1]), b""
while len(source) < size:
    source += os.read(0, size - len(source)) or sys.exit("the program is incomplete")
exec(compile(source, "<context>", "exec"), {"__name__": "context"})`

const (
	// Program is the command of a context.
	Program = "python3"
	// mark is the argument by which an exec is known as a context; behind it stand its maker and the size of the program.
	mark = "sandtrail-context-v1"
)

// Arguments are those of Program. maker is any word by which who starts a context knows it as its own.
func Arguments(maker string) []string {
	return []string{"-u", "-c", boot, mark, maker, strconv.Itoa(len(Source()))}
}

// Maker is the word with which a context was started; false for an exec that is none.
func Maker(x sandbox.Exec) (string, bool) {
	args := x.Spec.GetArgs()
	if x.Spec.GetCommand() != Program || len(args) != 6 || args[3] != mark {
		return "", false
	}
	return args[4], true
}

const (
	// Grace is how long a cell that was interrupted may take to end; it is the program's GRACE.
	Grace = 5 * time.Second
	// CodeMost is the most bytes of code of one cell.
	CodeMost = 1 << 20
	// AnswerMost is the most bytes of a line that can be an answer: the program's bounds, with every character escaped.
	AnswerMost = 32 << 20
)

// Request is what is asked of a context.
type Request struct {
	// ID is the request's own; the context takes it once.
	ID string `json:"id"`
	// Do is one of Run, Restart and Hello.
	Do   string `json:"do"`
	Code string `json:"code,omitempty"`
	// Timeout in seconds, after which the cell is interrupted.
	Timeout float64 `json:"timeout,omitempty"`
}

// What may be asked.
const (
	Run     = "run"
	Restart = "restart"
	Hello   = "hello"
)

// line is the request as it goes in. It begins with a newline, so that what somebody before has left unfinished ends, and with a sum, by which
// a mixture of two that were written at once is told from either.
func (r Request) line() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it is no page, and grows by it
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
	return fmt.Appendf(nil, "\n%08x %s\n", crc32.ChecksumIEEE(body), body), nil
}

// Answer is what came of a request: of a cell all but Python, of the others Python alone.
type Answer struct {
	ID string `json:"id"`
	// State is taken or begun, before the answer; empty in it.
	State string `json:"state"`
	// Busy: too many cells wait, it was not taken.
	Busy   bool   `json:"busy"`
	Python string `json:"python"`

	// Stdout and Stderr of the cell, of what it started, and of what was written since the cell before. At most 1 MiB each.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Text is the repr of the last expression, nil where it is None or there is none.
	Text    *string  `json:"text"`
	Results []Result `json:"results"`
	Error   *Error   `json:"error"`
	// Truncated: there was more output, or results, than an answer holds.
	Truncated bool `json:"truncated"`
	// TimedOut: the cell was interrupted. Restarted: its process is gone, and the variables with it.
	TimedOut  bool `json:"timed_out"`
	Restarted bool `json:"restarted"`
}

// Result is one form of a value, or a figure.
type Result struct {
	// Type is a media type.
	Type string `json:"type"`
	// Data is text; for images base64, for application/json the value.
	Data json.RawMessage `json:"data"`
	// Main: of the value of the last expression.
	Main bool `json:"main"`
}

// Error is how a cell failed: a Python exception, or ContextCrashed, ContextTimeout or ContextRestarted.
type Error struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}
