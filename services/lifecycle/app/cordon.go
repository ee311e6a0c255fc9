package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// cordonFile is in the state directory for as long as the worker is cordoned, and says why.
	cordonFile = "cordon"
	// maxCordon bounds the reason, which every heartbeat and each placement carries.
	maxCordon = 200
	// noReason stands where a reason cannot be read: it is cordoned all the same.
	noReason = "its reason cannot be read"
)

// ValidReason reports whether s may be why a worker is cordoned: 1 to 200 printable ASCII characters.
func ValidReason(s string) bool {
	return strings.TrimSpace(s) != "" && len(s) <= maxCordon && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// Cordon keeps new sandboxes off the worker that has a state directory, whether it runs or not, from its next heartbeat on. What is there
// goes on, and what is stopped there may be started.
func Cordon(stateDir, reason string) error {
	if !ValidReason(reason) {
		return fmt.Errorf("the reason is not 1 to %d printable ASCII characters", maxCordon)
	}
	path := filepath.Join(stateDir, cordonFile)
	if err := os.WriteFile(path+".new", []byte(reason+"\n"), 0o600); err != nil {
		return fmt.Errorf("cordon the worker: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("cordon the worker: %w", err)
	}
	return nil
}

// Uncordon ends that. One that is not cordoned is left as it is.
func Uncordon(stateDir string) error {
	if err := os.Remove(filepath.Join(stateDir, cordonFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end the cordon of the worker: %w", err)
	}
	return nil
}

// cordoned is why a worker is cordoned, empty where it is not.
func cordoned(stateDir string) string {
	if stateDir == "" {
		return ""
	}
	data, err := os.ReadFile(filepath.Join(stateDir, cordonFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	reason := strings.TrimSpace(string(data))
	if err != nil || !ValidReason(reason) {
		return noReason
	}
	return reason
}
