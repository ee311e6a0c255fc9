package system

import (
	"context"
	"io"
	"net"
	"sync"
)

// Relay lets pods reach what listens on this host's loopback only: it passes connections on from one address to another until ctx ends, and
// returns the address that it listens at.
func Relay(ctx context.Context, at, to string) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go pass(ctx, in, to)
		}
	}()
	return l.Addr().String(), nil
}

func pass(ctx context.Context, in net.Conn, to string) {
	defer in.Close()
	var d net.Dialer
	out, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() { _ = in.Close(); _ = out.Close() })
	defer stop()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			if c, ok := way[1].(*net.TCPConn); ok {
				_ = c.CloseWrite()
			}
		})
	}
	both.Wait()
}
