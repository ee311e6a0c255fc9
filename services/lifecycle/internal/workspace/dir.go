package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

// A workspace that is a directory is <id>.dir with two entries: what the sandbox sees, and a file with its size in bytes, which
// it does not see. Both come and go by one rename. Programs write there as this process's own user: nothing below what they see
// may be followed or trusted.
const (
	dirSuffix = ".dir"
	filesName = "files"
	sizeName  = "size"
)

// prepareDir makes an empty workspace at path, which must not exist.
func prepareDir(path string, size uint64) (err error) {
	if err := os.Mkdir(path, 0o700); err != nil {
		return diskFault(err)
	}
	defer func() {
		if err != nil {
			err = diskFault(errors.Join(err, removeTree(path)))
		}
	}()
	if err := os.Mkdir(filepath.Join(path, filesName), 0o755); err != nil { //nolint:gosec // above it nobody else gets
		return err
	}
	return os.WriteFile(filepath.Join(path, sizeName), strconv.AppendUint(nil, size, 10), 0o600)
}

// sizeOf reads the size that a workspace, of either kind, was made with.
func sizeOf(path string) (uint64, error) {
	if !strings.HasSuffix(path, dirSuffix) {
		info, err := os.Lstat(path)
		if err != nil {
			return 0, err
		}
		return uint64(info.Size()), nil //nolint:gosec // not negative
	}
	data, err := os.ReadFile(filepath.Join(path, sizeName))
	if err != nil {
		return 0, err
	}
	size, err := strconv.ParseUint(string(data), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the size of a workspace: %w", err)
	}
	return size, nil
}

// shown is the path of what a workspace's sandbox gets: the image, or the directory.
func shown(path string) string {
	if strings.HasSuffix(path, dirSuffix) {
		return filepath.Join(path, filesName)
	}
	return path
}

// otherKind refuses a workspace that was made by a worker with, or without, root.
func (s *Store) otherKind(id string) error {
	other, made := dirSuffix, "without"
	if s.o.Directories {
		other, made = suffix, "with"
	}
	if _, err := os.Lstat(filepath.Join(s.o.Dir, id+other)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonRuntimeFailed, "the workspace was made by a worker %s root: run the worker like that again, or delete the workspace", made)
}

// discard removes a workspace that is a directory. It is gone from its place at once; what an interrupted removal leaves is
// removed by the next Open.
func (s *Store) discard(path string) error {
	trash := filepath.Join(s.o.Dir, poolDir, ids.New()+".old")
	err := os.Rename(path, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskFault(err)
	}
	if err := removeTree(trash); err != nil {
		return diskFault(err)
	}
	return nil
}

// namesAtOnce bounds how many entries of a directory are held.
const namesAtOnce = 1024

// removeTree removes whatever is at path; what is not there is no error. A program may have taken permissions away, or nested
// directories deeper than a path may be long or than there are descriptors: a directory that is not empty is first moved up, so
// that the tree is never deeper than two levels below path. Symbolic links are removed, never followed.
func removeTree(path string) error {
	top, err := openDir(unix.AT_FDCWD, path)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return os.Remove(path)
	case err != nil:
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	err = errors.Join(remover{top}.empty(top), top.Close())
	if err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return os.Remove(path)
}

type remover struct{ top *os.File }

// empty removes every entry of a directory; where it is not the top, directories that are not empty are moved there.
func (r remover) empty(dir *os.File) error {
	for {
		if _, err := dir.Seek(0, 0); err != nil {
			return err
		}
		// Read from the start each time: entries go, and in the top new ones come.
		names, err := dir.Readdirnames(namesAtOnce)
		if len(names) == 0 {
			return ended(err)
		}
		for _, name := range names {
			if err := r.remove(dir, name); err != nil {
				return err
			}
		}
	}
}

func (r remover) remove(dir *os.File, name string) error {
	at := int(dir.Fd())
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if err == nil || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	sub, err := openDir(at, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	if dir != r.top {
		return unix.Renameat(at, name, int(r.top.Fd()), ids.New())
	}
	if err := r.empty(sub); err != nil {
		return err
	}
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}

// openDir opens a directory for reading, and gives its owner, who we are, every permission there first. A symbolic link is
// refused: the mode is set on what was opened, by its descriptor.
func openDir(at int, name string) (*os.File, error) {
	held, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(held)
	self := fmt.Sprintf("/proc/self/fd/%d", held)
	if err := unix.Chmod(self, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Open(self, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ended makes the end of a directory no error.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
