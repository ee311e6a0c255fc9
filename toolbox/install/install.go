// Package install copies this program to where another container of its pod finds it.
package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Name of the program in the directory.
const Name = "toolbox"

// To copies the running program into a directory, as toolbox, for everybody to run. It is there whole or not at all, and a copy of an
// earlier attempt is replaced.
func To(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return copyTo(self, dir)
}

func copyTo(program, dir string) (err error) {
	from, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, ".toolbox-*")
	if err != nil {
		return fmt.Errorf("write this program: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write this program: %w", errors.Join(err, os.Remove(to.Name())))
		}
	}()
	if _, err := io.Copy(to, from); err != nil {
		return errors.Join(err, to.Close())
	}
	if err := errors.Join(to.Chmod(0o755), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), filepath.Join(dir, Name))
}
