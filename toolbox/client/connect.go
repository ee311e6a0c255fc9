package client

import (
	"context"
	"errors"
	"net"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// Connect opens a connection to a port of the sandbox, which is the caller's to close; ctx bounds its opening. It has no end of one direction
// alone.
func (c *Client) Connect(ctx context.Context, r *toolboxv1.Connect) (_ net.Conn, err error) {
	const name = "connect"
	if c.observe != nil {
		var end func(error)
		ctx, end = c.observe(ctx, name)
		defer func() { end(err) }()
	}
	way, err := c.way(ctx, name)
	if err != nil {
		return nil, err
	}
	conn, err := open(ctx, way, name)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	res := &toolboxv1.Response{}
	err = c.exchange(conn, &toolboxv1.Request{Target: way.Target, Call: &toolboxv1.Request_Connect{Connect: r}}, res)
	switch {
	case !stop():
		err = failure(ctx, name, context.Canceled)
	case err != nil:
		err = failure(ctx, name, err)
	case res.Error != nil:
		err = refusal(ctx, name, res.Error)
	case res.GetConnect() == nil:
		err = failure(ctx, name, errors.New("answer to another call"))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
