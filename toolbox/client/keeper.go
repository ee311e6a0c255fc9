package client

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// KeeperDialer connects to the keeper of one sandbox at STATE/sandboxes/<id>/keeper.sock. The path is reached through
// /proc/self/fd, since a socket's own path may have at most 107 bytes and stateDir may be longer. A sandbox that is gone is
// an error with fs.ErrNotExist in its chain. No descriptor stays open but the connection's.
func KeeperDialer(stateDir, sandboxID string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		if sandboxID == "" || sandboxID == "." || sandboxID == ".." || filepath.Base(sandboxID) != sandboxID {
			return nil, fmt.Errorf("sandbox id %q: %w", sandboxID, fs.ErrInvalid)
		}
		return DirDialer(filepath.Join(stateDir, "sandboxes", sandboxID))(ctx)
	}
}

// DirDialer is KeeperDialer for the keeper whose directory is dir.
func DirDialer(dir string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(fd)
		var d net.Dialer
		return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd)+"/keeper.sock")
	}
}
