package keeper

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
)

// Enter puts this process into cgroups, given by their cgroup.procs files, and becomes the command behind "--". It returns
// only on an error. A process of its own does this, so that everything of runsc, from its first page on, counts.
func Enter(args []string) error {
	at := slices.Index(args, "--")
	if at < 0 || at+1 >= len(args) {
		return errors.New("no command")
	}
	for _, procs := range args[:at] {
		if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	command := args[at+1:]
	return syscall.Exec(command[0], command, os.Environ())
}
