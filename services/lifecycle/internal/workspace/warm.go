package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// warmDir holds the workspaces of warm sandboxes, which are no sandbox's: List does not give them.
const warmDir = ".warm"

// WarmPath is where what the warm sandbox w gets of its workspace lies, whether or not it exists. w must have passed ids.Valid.
func (s *Store) WarmPath(w string) string { return shown(s.warmPlace(w)) }

func (s *Store) warmPlace(w string) string { return filepath.Join(s.o.Dir, warmDir, w+s.suffix()) }

// Reserve makes an empty workspace for the warm sandbox w and returns WarmPath; the size is as for Create. One that exists is an
// error: w is used once.
func (s *Store) Reserve(ctx context.Context, w string, size uint64) (string, error) {
	size, err := checkSize(size)
	if err != nil {
		return "", err
	}
	if err := checkID(w); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(s.o.Dir, warmDir), 0o700); err != nil {
		return "", diskFault(err)
	}
	from, err := s.empty(ctx, size)
	if err != nil {
		return "", err
	}
	to := s.warmPlace(w)
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		_ = removeTree(from)
		return "", diskFault(fmt.Errorf("reserve workspace: %w", err))
	}
	return shown(to), nil
}

// Adopt makes the workspace of the warm sandbox w that of sandbox id. Where that was done already it changes nothing; where id has
// another workspace it is a conflict.
func (s *Store) Adopt(w, id string) error {
	if err := errors.Join(checkID(w), checkID(id)); err != nil {
		return err
	}
	if err := s.otherKind(id); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, s.warmPlace(w), unix.AT_FDCWD, s.place(id), unix.RENAME_NOREPLACE)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT) && s.Exists(id):
		return nil
	case errors.Is(err, unix.EEXIST):
		return fault.New(fault.Conflict, fault.ReasonConflict, "the sandbox has a workspace already")
	}
	return diskFault(fmt.Errorf("adopt workspace: %w", err))
}

// Drop removes the workspace of the warm sandbox w; one that is not there is no error.
func (s *Store) Drop(w string) error {
	if err := checkID(w); err != nil {
		return err
	}
	at := filepath.Join(s.o.Dir, warmDir, w)
	if err := os.Remove(at + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskFault(err)
	}
	return s.discard(at + dirSuffix)
}
