package files

import (
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// maxDepth bounds how deep Delete goes: each level is an open directory.
const maxDepth = 100

// Delete removes what is at a path: a link and not what it points to, whatever kind of file it is, a directory with what is in it only where
// recursive is set. What is too large or too deep for one call is removed in part, and refused with too_large.
func (f *Files) Delete(r *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error) {
	rel, err := f.inside(r.Path)
	if err != nil {
		return nil, err
	}
	if rel == "." {
		return nil, invalid("the workspace itself cannot be removed")
	}
	parent, base := path.Split(rel)
	if Hidden(base) {
		return nil, invalid("the name is reserved")
	}
	dir, err := f.openDir(path.Clean(parent))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	left := maxScan
	if err := remove(dir, base, r.Recursive, maxDepth, &left); err != nil {
		return nil, err
	}
	return &toolboxv1.DeleteFileReply{}, f.sync(dir)
}

// remove removes one name of a directory. Single names in open directories lead nowhere else, whatever the guest swaps meanwhile.
func remove(dir *os.File, name string, recursive bool, depth int, left *int) error {
	fd := int(dir.Fd())
	switch err := unix.Unlinkat(fd, name, 0); err {
	case nil:
		return nil
	case unix.EISDIR:
	default:
		return classify(err)
	}
	err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	switch {
	case err == nil:
		return nil
	case err != unix.ENOTEMPTY && err != unix.EEXIST:
		return classify(err)
	case !recursive:
		return wire.NewError("failed_precondition", "path_not_empty", "the directory is not empty")
	case depth == 0:
		return tooMuch()
	}
	below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return classify(err)
	}
	inner := os.NewFile(uintptr(below), name)
	defer inner.Close()
	if err := removeAll(inner, depth-1, left); err != nil {
		return err
	}
	if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil {
		return classify(err)
	}
	return nil
}

// removeAll empties a directory.
func removeAll(dir *os.File, depth int, left *int) error {
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if *left--; *left < 0 {
				return tooMuch()
			}
			if err := remove(dir, name, true, depth, left); err != nil && !errors.Is(err, notFound()) {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return classify(err)
		}
	}
}

func tooMuch() error {
	return wire.NewError("resource_exhausted", "too_large", "there is too much in the directory, or too deep, to remove it from outside; remove it in the sandbox")
}
