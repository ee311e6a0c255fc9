// Package connect reaches ports at the loopback address of a sandbox. Where nobody but the sandbox's own kernel does, a helper in the sandbox
// dials them: one for all connections, which it carries over its standard input and output.
//
// What comes of a helper is the guest's own word: a program of the sandbox may take its place. It can say what a program that listens could
// have said as well, and no more.
package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const (
	// Argument is what the toolbox's program is called with to be a helper.
	Argument = "connect"
	// Most connections are open in one sandbox at once.
	Most = 64
	// dialTime bounds the opening of one: the loopback address answers at once, unless a program's queue is full.
	dialTime = 5 * time.Second
	// maxPort is the highest port; the lowest is 1.
	maxPort = 65535
)

// Check refuses what is no port.
func Check(port uint32) error {
	if port < 1 || port > maxPort {
		return wire.NewError("invalid_argument", "validation", "a port is a number from 1 to 65535")
	}
	return nil
}

// Closed is the answer where nothing listens.
func Closed(port uint32) error {
	return wire.NewError("unavailable", "port_unavailable", fmt.Sprintf("nothing listens at port %d of the sandbox", port))
}

// Full is the answer where Most connections are open.
func Full() error {
	return wire.NewError("resource_exhausted", "too_many_calls", fmt.Sprintf("the sandbox has %d connections to its ports already", Most))
}

// Dial opens a connection to a port of this machine's loopback address, of either family. Errors are those that a toolbox answers.
func Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if err := Check(port); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	// A dead peer is found by whoever uses the connection: there are no wires to fail between two programs of one machine.
	d := net.Dialer{KeepAlive: -1}
	at := strconv.FormatUint(uint64(port), 10)
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", at))
	if errors.Is(err, syscall.ECONNREFUSED) {
		var second error
		if conn, second = d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", at)); second == nil {
			return conn, nil
		}
	}
	if err != nil {
		return nil, Closed(port)
	}
	return conn, nil
}
