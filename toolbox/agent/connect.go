package agent

import (
	"context"
	"io"
	"net"
	"sync"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/connect"
)

// Connect implements server.Handler: the agent has the sandbox's own loopback address.
func (a *Agent) Connect(ctx context.Context, r *toolboxv1.Connect) (io.ReadWriteCloser, error) {
	select {
	case a.ports <- struct{}{}:
	default:
		return nil, connect.Full()
	}
	conn, err := a.reach(ctx, r)
	if err != nil {
		<-a.ports
		return nil, err
	}
	return &port{ReadWriteCloser: conn, leave: func() { <-a.ports }}, nil
}

func (a *Agent) reach(ctx context.Context, r *toolboxv1.Connect) (net.Conn, error) {
	if r.GetOutgoing() {
		return a.door.Accept(ctx)
	}
	return connect.Dial(ctx, r.GetPort())
}

// port is a connection that has a place.
type port struct {
	io.ReadWriteCloser
	leave func()
	once  sync.Once
}

func (p *port) Close() error {
	defer p.once.Do(p.leave)
	return p.ReadWriteCloser.Close()
}
