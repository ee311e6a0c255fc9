package server

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Socket is the name of a keeper's socket in its sandbox's directory.
const Socket = "keeper.sock"

// Listen binds keeper.sock in dir, replacing what a former keeper left there; only the same user can connect. The path is
// reached through /proc/self/fd, since a socket's own path may have at most 107 bytes and dir may be longer.
func Listen(dir string) (net.Listener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(fd, Socket, 0); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	path := "/proc/self/fd/" + strconv.Itoa(fd) + "/" + Socket
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", Socket, err)
	}
	// The path means nothing once the directory is closed; the next Listen removes the socket.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect socket: %w", err)
	}
	return l, nil
}
