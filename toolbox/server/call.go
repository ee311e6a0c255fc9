package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// call runs every call but Attach.
func (s *server) call(ctx context.Context, req *toolboxv1.Request) *toolboxv1.Response {
	res := &toolboxv1.Response{}
	err := s.guard(func() error { return s.dispatch(ctx, req, res) })
	if err != nil {
		return &toolboxv1.Response{Error: s.failure(fmt.Sprintf("%T", req.Call), err)}
	}
	return res
}

func (s *server) dispatch(ctx context.Context, req *toolboxv1.Request, res *toolboxv1.Response) error {
	h := s.handler
	switch c := req.Call.(type) {
	case *toolboxv1.Request_Hello:
		r, err := h.Hello(ctx, c.Hello)
		res.Answer = &toolboxv1.Response_Hello{Hello: r}
		return err
	case *toolboxv1.Request_Start:
		r, err := h.Start(ctx, c.Start)
		res.Answer = &toolboxv1.Response_Start{Start: r}
		return err
	case *toolboxv1.Request_Stdin:
		r, err := h.Stdin(ctx, c.Stdin)
		res.Answer = &toolboxv1.Response_Stdin{Stdin: r}
		return err
	case *toolboxv1.Request_Resize:
		r, err := h.Resize(ctx, c.Resize)
		res.Answer = &toolboxv1.Response_Resize{Resize: r}
		return err
	case *toolboxv1.Request_Signal:
		r, err := h.Signal(ctx, c.Signal)
		res.Answer = &toolboxv1.Response_Signal{Signal: r}
		return err
	case *toolboxv1.Request_List:
		r, err := h.List(ctx, c.List)
		res.Answer = &toolboxv1.Response_List{List: r}
		return err
	case *toolboxv1.Request_Usage:
		r, err := h.Usage(ctx, c.Usage)
		res.Answer = &toolboxv1.Response_Usage{Usage: r}
		return err
	case *toolboxv1.Request_ReadFile:
		r, err := h.ReadFile(ctx, c.ReadFile)
		res.Answer = &toolboxv1.Response_ReadFile{ReadFile: r}
		return err
	case *toolboxv1.Request_WriteFile:
		r, err := h.WriteFile(ctx, c.WriteFile)
		res.Answer = &toolboxv1.Response_WriteFile{WriteFile: r}
		return err
	case *toolboxv1.Request_ListFiles:
		r, err := h.ListFiles(ctx, c.ListFiles)
		res.Answer = &toolboxv1.Response_ListFiles{ListFiles: r}
		return err
	case *toolboxv1.Request_StatFile:
		r, err := h.StatFile(ctx, c.StatFile)
		res.Answer = &toolboxv1.Response_StatFile{StatFile: r}
		return err
	case *toolboxv1.Request_DeleteFile:
		r, err := h.DeleteFile(ctx, c.DeleteFile)
		res.Answer = &toolboxv1.Response_DeleteFile{DeleteFile: r}
		return err
	case *toolboxv1.Request_MakeEntry:
		r, err := h.MakeEntry(ctx, c.MakeEntry)
		res.Answer = &toolboxv1.Response_MakeEntry{MakeEntry: r}
		return err
	case *toolboxv1.Request_Shutdown:
		r, err := h.Shutdown(ctx, c.Shutdown)
		res.Answer = &toolboxv1.Response_Shutdown{Shutdown: r}
		return err
	case *toolboxv1.Request_Forget:
		r, err := h.Forget(ctx, c.Forget)
		res.Answer = &toolboxv1.Response_Forget{Forget: r}
		return err
	case *toolboxv1.Request_Configure:
		r, err := h.Configure(ctx, c.Configure)
		res.Answer = &toolboxv1.Response_Configure{Configure: r}
		return err
	}
	return wire.NewError("invalid_argument", "validation", "unknown call")
}

// guard turns a panic into an error: one broken call must not take down the keeper, and every program of the sandbox with it.
func (s *server) guard(f func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		// A panic's value may hold content of the request; only the runtime's own are safe to log.
		cause := "panic"
		if re, ok := v.(runtime.Error); ok {
			cause = re.Error()
		}
		s.log.Error("call panicked", "cause", cause, "stack", string(debug.Stack()))
		err = errors.New(cause)
	}()
	return f()
}

// failure is how err is answered; what the caller does not get to see goes to the log.
func (s *server) failure(call string, err error) *toolboxv1.Error {
	e := wire.ToProto(err)
	if e.Code == "internal" {
		s.log.Error("call failed", "call", call, "error", err)
	}
	return e
}
