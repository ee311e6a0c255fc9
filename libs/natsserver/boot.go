package natsserver

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// bootFile names the boot of the machine in which a server runs, for as long as it runs.
	bootFile = "sandtrail.boot"
	// bootID is the kernel's, another one after each boot.
	bootID = "/proc/sys/kernel/random/boot_id"
)

// begin writes down that a server runs, and tells whether the last one was ended by the end of its machine.
func begin(dir string) (crashed bool, err error) {
	now, err := os.ReadFile(bootID)
	if err != nil {
		return false, fmt.Errorf("read the id of this boot: %w", err)
	}
	path := filepath.Join(dir, bootFile)
	then, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read %s: %w", bootFile, err)
	}
	crashed = err == nil && !bytes.Equal(then, now)
	if err := os.WriteFile(path+".new", now, 0o600); err != nil {
		return false, fmt.Errorf("write %s: %w", bootFile, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return false, fmt.Errorf("write %s: %w", bootFile, err)
	}
	return crashed, nil
}

// Crashed reports whether the machine went down under the server that used this directory before. Unless every write was flushed
// each stream may then lack its end, and not all of them from the same moment on: a view may be ahead of the log, and a checkpoint
// ahead of its view.
func (s *Server) Crashed() bool { return s.crashed }
