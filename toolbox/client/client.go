// Package client calls a sandbox's toolbox. Each call is a connection of its own, but for the clients of a Pool.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// Error is what a toolbox answered in place of a reply.
type Error = wire.Error

// ErrUnavailable is in the chain of every failure of the connection: not reached, cut, or not speaking the protocol. Whether
// the call had its effect is then unknown; every call may be made again.
var ErrUnavailable = errors.New("toolbox is unavailable")

// ErrElsewhere comes with ErrUnavailable: another toolbox answered at the address. The one that was meant has it no more.
var ErrElsewhere = errors.New("the address belongs to another toolbox")

// Client calls one toolbox. It may be used concurrently.
type Client struct {
	route   func(context.Context) (Route, error)
	token   string
	observe Observer
	// kept are connections to use again.
	kept shelf
}

// Route is the way to one toolbox.
type Route struct {
	Dial func(context.Context) (net.Conn, error)
	// Target is whom calls are meant for; nil where the way leads to nobody else.
	Target *toolboxv1.Target
	// Identity is another one for another toolbox: a connection is used again only for the one that it was made to.
	Identity string
}

// Observer is told of the beginning of each call and by the function it returns of its end: the context it returns is the
// call's. An attach ends when the output has been asked for, not with the output.
type Observer func(ctx context.Context, call string) (context.Context, func(error))

// Observed is the client with an observer in place of the one it has.
func (c *Client) Observed(o Observer) *Client {
	observed := *c
	observed.observe = o
	return &observed
}

// New returns a client that connects through dial for each call. token is empty where the file system protects the socket.
func New(dial func(ctx context.Context) (net.Conn, error), token string) *Client {
	return NewRouted(Route{Dial: dial}, token)
}

// NewRouted returns a client that connects by the route for each call.
func NewRouted(r Route, token string) *Client {
	return &Client{route: func(context.Context) (Route, error) { return r, nil }, token: token}
}

// The calls. Errors are *Error, or have ErrUnavailable or the context's error in their chain.

// Hello asks whether the sandbox lives.
func (c *Client) Hello(ctx context.Context, r *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	return call(ctx, c, "hello", &toolboxv1.Request{Call: &toolboxv1.Request_Hello{Hello: r}}, (*toolboxv1.Response).GetHello)
}

// Start runs a program under an exec id, at most once for each id.
func (c *Client) Start(ctx context.Context, r *toolboxv1.Start) (*toolboxv1.StartReply, error) {
	return call(ctx, c, "start", &toolboxv1.Request{Call: &toolboxv1.Request_Start{Start: r}}, (*toolboxv1.Response).GetStart)
}

// Stdin writes to a program's standard input.
func (c *Client) Stdin(ctx context.Context, r *toolboxv1.Stdin) (*toolboxv1.StdinReply, error) {
	return call(ctx, c, "stdin", &toolboxv1.Request{Call: &toolboxv1.Request_Stdin{Stdin: r}}, (*toolboxv1.Response).GetStdin)
}

// Signal signals a program or ends its tree.
func (c *Client) Signal(ctx context.Context, r *toolboxv1.Signal) (*toolboxv1.SignalReply, error) {
	return call(ctx, c, "signal", &toolboxv1.Request{Call: &toolboxv1.Request_Signal{Signal: r}}, (*toolboxv1.Response).GetSignal)
}

// List names the execs that the toolbox knows.
func (c *Client) List(ctx context.Context, r *toolboxv1.List) (*toolboxv1.ListReply, error) {
	return call(ctx, c, "list", &toolboxv1.Request{Call: &toolboxv1.Request_List{List: r}}, (*toolboxv1.Response).GetList)
}

// Resize gives the terminal of an exec another size.
func (c *Client) Resize(ctx context.Context, r *toolboxv1.Resize) (*toolboxv1.ResizeReply, error) {
	return call(ctx, c, "resize", &toolboxv1.Request{Call: &toolboxv1.Request_Resize{Resize: r}}, (*toolboxv1.Response).GetResize)
}

// Usage is what the sandbox has used until now.
func (c *Client) Usage(ctx context.Context, r *toolboxv1.Usage) (*toolboxv1.UsageReply, error) {
	return call(ctx, c, "usage", &toolboxv1.Request{Call: &toolboxv1.Request_Usage{Usage: r}}, (*toolboxv1.Response).GetUsage)
}

// ReadFile reads a part of a file; less than max_bytes may come.
func (c *Client) ReadFile(ctx context.Context, r *toolboxv1.ReadFile) (*toolboxv1.ReadFileReply, error) {
	return call(ctx, c, "read file", &toolboxv1.Request{Call: &toolboxv1.Request_ReadFile{ReadFile: r}}, (*toolboxv1.Response).GetReadFile)
}

// WriteFile sends a part of a file.
func (c *Client) WriteFile(ctx context.Context, r *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error) {
	return call(ctx, c, "write file", &toolboxv1.Request{Call: &toolboxv1.Request_WriteFile{WriteFile: r}}, (*toolboxv1.Response).GetWriteFile)
}

// ListFiles lists a directory.
func (c *Client) ListFiles(ctx context.Context, r *toolboxv1.ListFiles) (*toolboxv1.ListFilesReply, error) {
	return call(ctx, c, "list files", &toolboxv1.Request{Call: &toolboxv1.Request_ListFiles{ListFiles: r}}, (*toolboxv1.Response).GetListFiles)
}

// StatFile tells of a regular file, with its digest where that is asked for.
func (c *Client) StatFile(ctx context.Context, r *toolboxv1.StatFile) (*toolboxv1.StatFileReply, error) {
	return call(ctx, c, "stat file", &toolboxv1.Request{Call: &toolboxv1.Request_StatFile{StatFile: r}}, (*toolboxv1.Response).GetStatFile)
}

// MakeEntry makes a directory, or a link.
func (c *Client) MakeEntry(ctx context.Context, r *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error) {
	return call(ctx, c, "make entry", &toolboxv1.Request{Call: &toolboxv1.Request_MakeEntry{MakeEntry: r}}, (*toolboxv1.Response).GetMakeEntry)
}

// DeleteFile removes a file, or a directory.
func (c *Client) DeleteFile(ctx context.Context, r *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error) {
	return call(ctx, c, "delete file", &toolboxv1.Request{Call: &toolboxv1.Request_DeleteFile{DeleteFile: r}}, (*toolboxv1.Response).GetDeleteFile)
}

// Shutdown ends the sandbox and returns when nothing of it is left.
func (c *Client) Shutdown(ctx context.Context, r *toolboxv1.Shutdown) (*toolboxv1.ShutdownReply, error) {
	return call(ctx, c, "shutdown", &toolboxv1.Request{Call: &toolboxv1.Request_Shutdown{Shutdown: r}}, (*toolboxv1.Response).GetShutdown)
}

// Forget drops the kept output of an ended exec.
func (c *Client) Forget(ctx context.Context, r *toolboxv1.Forget) (*toolboxv1.ForgetReply, error) {
	return call(ctx, c, "forget", &toolboxv1.Request{Call: &toolboxv1.Request_Forget{Forget: r}}, (*toolboxv1.Response).GetForget)
}

// Configure tells an agent whose sandbox it is and the environment of what it starts, once.
func (c *Client) Configure(ctx context.Context, r *toolboxv1.Configure) (*toolboxv1.ConfigureReply, error) {
	return call(ctx, c, "configure", &toolboxv1.Request{Call: &toolboxv1.Request_Configure{Configure: r}}, (*toolboxv1.Response).GetConfigure)
}

// call makes one call with one answer, which pick takes out of the response.
func call[R any](ctx context.Context, c *Client, name string, req *toolboxv1.Request, pick func(*toolboxv1.Response) *R) (_ *R, err error) {
	if c.observe != nil {
		var end func(error)
		ctx, end = c.observe(ctx, name)
		defer func() { end(err) }()
	}
	res, err := c.roundTrip(ctx, name, req)
	if err != nil {
		return nil, failure(ctx, name, err)
	}
	if res.Error != nil {
		return nil, refusal(ctx, name, res.Error)
	}
	r := pick(res)
	if r == nil {
		return nil, failure(ctx, name, errors.New("answer to another call"))
	}
	return r, nil
}

// roundTrip sends a request on a kept connection, or on a new one where there is none or the toolbox has closed it meanwhile.
func (c *Client) roundTrip(ctx context.Context, name string, req *toolboxv1.Request) (*toolboxv1.Response, error) {
	way, err := c.way(ctx, name)
	if err != nil {
		return nil, err
	}
	req.Target = way.Target
	if conn := c.kept.take(way.Identity); conn != nil {
		if res, err := c.try(ctx, conn, way, req); err == nil || ctx.Err() != nil || errors.As(err, new(*Error)) {
			return res, err
		}
	}
	conn, err := open(ctx, way, name)
	if err != nil {
		return nil, err
	}
	return c.try(ctx, conn, way, req)
}

// way finds the route.
func (c *Client) way(ctx context.Context, name string) (Route, error) {
	if err := ctx.Err(); err != nil {
		return Route{}, fmt.Errorf("toolbox %s: %w", name, err)
	}
	r, err := c.route(ctx)
	if err != nil {
		return Route{}, failure(ctx, name, err)
	}
	return r, nil
}

// try makes an exchange on a connection, which is kept or closed then.
func (c *Client) try(ctx context.Context, conn net.Conn, way Route, req *toolboxv1.Request) (*toolboxv1.Response, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	res := &toolboxv1.Response{}
	err := c.exchange(conn, req, res)
	if stop() && err == nil && res.Error == nil && c.kept.give(conn, way.Identity) {
		return res, nil
	}
	conn.Close()
	return res, err
}

// open connects.
func open(ctx context.Context, way Route, name string) (net.Conn, error) {
	conn, err := way.Dial(ctx)
	if err != nil {
		return nil, failure(ctx, name, err)
	}
	return conn, nil
}

// exchange sends the request and reads the first response. A toolbox that refuses the connection answers and closes before
// it has read the request, so that the write may fail with the answer already here.
func (c *Client) exchange(conn net.Conn, req *toolboxv1.Request, res *toolboxv1.Response) error {
	req.Token = c.token
	sent := wire.Write(conn, req)
	if errors.Is(sent, wire.ErrTooLarge) {
		return &Error{Code: "invalid_argument", Reason: "too_large", Message: "the request is over 1 MiB"}
	}
	err := wire.Read(conn, res)
	switch {
	case err == nil:
		return nil
	case sent != nil:
		return sent
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// refusal is the error of a call that was answered with one.
func refusal(ctx context.Context, name string, e *toolboxv1.Error) error {
	if wire.IsElsewhere(e) {
		return failure(ctx, name, ErrElsewhere)
	}
	return wire.FromProto(e)
}

// failure is the error of a call that got no answer.
func failure(ctx context.Context, name string, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case ctx.Err() != nil:
		return fmt.Errorf("toolbox %s: %w", name, ctx.Err())
	}
	return fmt.Errorf("toolbox %s: %w: %w", name, ErrUnavailable, err)
}
