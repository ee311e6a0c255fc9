package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

func invalid(message string) error { return wire.NewError("invalid_argument", "validation", message) }

func escapes() error {
	return wire.NewError("permission_denied", "path_escapes", "the path leaves the workspace")
}

func notFound() error {
	return wire.NewError("not_found", "path_not_found", "no such file or directory")
}

func notFile() error {
	return wire.NewError("failed_precondition", "path_not_file", "the path is not a regular file")
}

func notDirectory() error {
	return wire.NewError("failed_precondition", "path_not_directory", "the path is not a directory")
}

func changed() error {
	return wire.NewError("conflict", "concurrent_change", "the file was changed while it was written")
}

// classify turns what the system says into what a caller gets to see. Messages hold no path: a host path is nobody's business.
func classify(err error) error {
	var known *wire.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		// An os.Root says that a path leaves it with an error of its own that is not exported; it is no errno and none of the
		// exported ones.
		var pathErr *os.PathError
		var linkErr *os.LinkError
		if (errors.As(err, &pathErr) || errors.As(err, &linkErr)) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
			return escapes()
		}
		return fmt.Errorf("workspace: %w", err)
	}
	switch errno {
	case unix.ENOENT, unix.ELOOP:
		return notFound()
	case unix.ENOTDIR:
		return notDirectory()
	case unix.EISDIR, unix.ENXIO, unix.ENODEV, unix.ETXTBSY:
		return notFile()
	case unix.ENOSPC, unix.EDQUOT:
		return wire.NewError("resource_exhausted", "disk_full", "the workspace is full")
	case unix.EFBIG:
		return wire.NewError("resource_exhausted", "too_large", "the file is too large")
	case unix.ENAMETOOLONG, unix.EINVAL:
		return invalid("the path is not a valid one")
	case unix.EACCES, unix.EPERM:
		return wire.NewError("permission_denied", "path_not_file", "the file cannot be opened")
	}
	return fmt.Errorf("workspace: %w", err)
}
