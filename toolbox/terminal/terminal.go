// Package terminal runs a program on a terminal of the sandbox's own kernel, so that what belongs to one works as on any machine: job
// control, /dev/tty, the size. A helper in the sandbox holds the terminal's other end and carries bytes between it and the pipes that
// every exec has.
package terminal

import (
	"encoding/binary"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

// Argument is what the toolbox's program is called with to be a helper; the argv to run comes behind it.
const Argument = "terminal"

// Beside the standard streams a helper has two pipes: on sizes come the terminal's sizes, the first before anything else; on said it
// says once how its start went, as a StartError.
const (
	sizesFD = 3
	saidFD  = 4
)

// MostColumns and MostRows bound a size.
const (
	MostColumns = 1000
	MostRows    = 1000
)

// SizeBytes is the length of an encoded size.
const SizeBytes = 4

// Valid reports whether a terminal may have a size: both numbers are at least 1.
func Valid(s *commonv1.TerminalSize) bool {
	return s.GetColumns() >= 1 && s.GetColumns() <= MostColumns && s.GetRows() >= 1 && s.GetRows() <= MostRows
}

// Encode is a valid size as a helper reads it.
func Encode(s *commonv1.TerminalSize) [SizeBytes]byte {
	var b [SizeBytes]byte
	binary.BigEndian.PutUint16(b[:], uint16(s.GetColumns())) //nolint:gosec // at most MostColumns
	binary.BigEndian.PutUint16(b[2:], uint16(s.GetRows()))   //nolint:gosec // at most MostRows
	return b
}

// Argv is the command of a helper that runs argv.
func Argv(helper string, argv []string) []string { return append([]string{helper, Argument}, argv...) }

// StartError is why a program was not started; 0 says that it was.
type StartError byte

// The faults of a start.
const (
	ErrNotFound StartError = iota + 1
	ErrNotExecutable
	ErrNoProcesses
	// ErrNoTerminal: the sandbox's kernel gave none.
	ErrNoTerminal
	// ErrOther is everything else, and what a helper did not live to say.
	ErrOther
)

func (f StartError) Error() string {
	switch f {
	case ErrNotFound:
		return "command not found"
	case ErrNotExecutable:
		return "cannot be executed"
	case ErrNoProcesses:
		return "no more processes"
	case ErrNoTerminal:
		return "no terminal"
	default:
		return "not started"
	}
}
