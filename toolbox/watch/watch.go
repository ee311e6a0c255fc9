// Package watch tells what changes in a directory of a sandbox. A helper in the sandbox asks its kernel (inotify) and writes a line of JSON for
// each change: they are the output of an exec like any other.
//
// Its standard input says how far somebody has read: as many bytes as of its output, whatever they are. So the place of a reader is where the
// sandbox is, and a helper knows whether it has one.
package watch

const (
	// Program is the name by which a watcher is started, as an exec with its standard input kept open, in the directory that is watched; Recursive
	// is its only argument.
	Program   = "sandtrail-watch"
	Recursive = "recursive"
	// Argument is what the toolbox's program is called with to be a helper, OutsideArgument where it is told what changes from outside too:
	// as events whose names are absolute, by descriptor outsideFD.
	Argument        = "watch"
	OutsideArgument = "watch-outside"

	outsideFD = 3
)

// Argv is the command of a helper for a command that asks for one, and whether it does.
func Argv(helper string, argv []string) ([]string, bool) {
	if len(argv) == 0 || argv[0] != Program {
		return argv, false
	}
	return append([]string{helper, Argument}, argv[1:]...), true
}

// WithOutside is the command of a helper that has the pipe for what changes from outside.
func WithOutside(argv []string) []string {
	return append([]string{argv[0], OutsideArgument}, argv[2:]...)
}

// The types of events.
const (
	Create = "create"
	Write  = "write"
	Remove = "remove"
	// Rename is told under the old name; under the new one there is a Create.
	Rename = "rename"
	// Chmod is a change of what is said of a file, and not of its content.
	Chmod = "chmod"
	// Overflow says that there were more changes than are told, at or below its name.
	Overflow = "overflow"
	// Ready is the first event: what changes behind it is told.
	Ready = "ready"
)

// Event is a change. An empty line is none: it asks whether somebody reads.
type Event struct {
	// Name is relative to the directory that is watched, which is "." itself.
	Name string `json:"name"`
	Type string `json:"type"`
}

// The exit codes of a helper. It says why on standard error, where that is none of ExitOver.
const (
	// ExitOver: the directory is gone, its standard input has ended, or nobody read.
	ExitOver = 0
	// ExitDirectory: it cannot be watched.
	ExitDirectory = 3
	// ExitWatchers: the sandbox has MostWatchers.
	ExitWatchers = 4
)

const (
	// MostWatchers run in one sandbox at once.
	MostWatchers = 4
	// MostDirectories are watched by one, of a tree.
	MostDirectories = 4096
)
