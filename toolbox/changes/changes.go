// Package changes tells what a sandbox has changed outside of its workspace. A helper in the sandbox walks its root and compares it with an
// index of the image, which comes on its standard input; its output is a tar of what is new or other, with the whiteouts of OCI for what is gone.
//
// The helper is one of the sandbox's programs: it reads what they may, and they may have it lie. A lie is about the sandbox's own files, and who
// reads the output takes nothing else for granted.
//
// What tells a file that was changed is its ctime: no program of a sandbox can set it, and whatever is written to a file of the image, or said
// of it, gives it another one.
package changes

const (
	// Program is the name by which a helper is started, as an exec with its standard input kept open.
	Program = "sandtrail-changes"
	// Argument is what the toolbox's program is called with to be one.
	Argument = "changes"
	// ExitFailed: it could not tell, and says why on standard error.
	ExitFailed = 3
	// Whiteout begins the name of an entry for what is gone.
	Whiteout = ".wh."
)

// Argv is the command of a helper for a command that asks for one, and whether it does.
func Argv(helper string, argv []string) ([]string, bool) {
	if len(argv) != 1 || argv[0] != Program {
		return argv, false
	}
	return []string{helper, Argument}, true
}
