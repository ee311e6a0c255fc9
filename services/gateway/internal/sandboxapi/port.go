package sandboxapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/gateway/internal/content"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	// portBody is the most bytes of a request to a port, portAnswer how long its program may take to begin its answer.
	portBody   = 100 << 20
	portAnswer = 5 * time.Minute
	// portDial bounds the opening of a connection.
	portDial = 15 * time.Second
	// portConns are open to one port at once from here, of which portIdle stay for a moment once they are free. Further requests wait.
	portConns, portIdle = 48, 16
	portKeep            = 20 * time.Second
	// portHead bounds the head of an answer, in bytes.
	portHead = 64 << 10
)

// dialled is the key of a context's sandbox.
type dialled struct{}

// transport keeps connections to ports. A host is the id of a sandbox, which is never another one's.
func transport(use *usecase.UseCases) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			s, ok := ctx.Value(dialled{}).(sandbox.Sandbox)
			_, port, err := net.SplitHostPort(address)
			n, bad := strconv.ParseUint(port, 10, 16)
			if !ok || err != nil || bad != nil {
				return nil, fault.From(errors.New("a connection to no port"))
			}
			ctx, cancel := context.WithTimeout(ctx, portDial)
			defer cancel()
			return use.Dial(ctx, s, uint16(n))
		},
		DisableCompression: true, MaxConnsPerHost: portConns, MaxIdleConnsPerHost: portIdle, MaxIdleConns: 256, IdleConnTimeout: portKeep,
		ExpectContinueTimeout: time.Second, MaxResponseHeaderBytes: portHead, WriteBufferSize: 64 << 10, ReadBufferSize: 32 << 10,
	}
}

// toPort hands a request to a program in the sandbox, and its answer back.
func (c *call) toPort(id string, port uint16) error {
	if c.target.rest == "" { // relative links need the slash
		c.w.Header().Set("Location", c.target.prefix[strings.LastIndexByte(c.target.prefix, '/')+1:]+"/"+query(c.r.URL))
		c.Begin(http.StatusPermanentRedirect, mediaText)
		c.w.WriteHeader(http.StatusPermanentRedirect)
		return nil
	}
	path, err := url.PathUnescape(c.target.rest)
	if err != nil {
		return malformed("the path is none")
	}
	box, done, err := c.use.Serving(c.ctx, c.p, id)
	if err != nil {
		return err
	}
	defer done()
	// A program's early answers are not passed on: their heads are its own. Without the values of the call nobody is told of them.
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), dialled{}, box))
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })()
	late := time.AfterFunc(portAnswer, func() {
		cancel(fault.Newf(fault.DeadlineExceeded, fault.ReasonTimeout, "the program at port %d did not begin to answer within %s", port, portAnswer))
	})
	defer late.Stop()
	v := visit{call: c, port: port, to: &url.URL{Scheme: "http", Host: net.JoinHostPort(id, strconv.Itoa(int(port))), Path: path, RawPath: c.target.rest, RawQuery: c.r.URL.RawQuery}}
	proxy := &httputil.ReverseProxy{
		Rewrite: v.rewrite,
		Transport: tripper(func(r *http.Request) (*http.Response, error) {
			return c.ports.RoundTrip(r.WithContext(ctx))
		}),
		FlushInterval: -1,
		ErrorLog:      quiet,
		ModifyResponse: func(res *http.Response) error {
			late.Stop()
			v.answered(res)
			c.Status = res.StatusCode
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { v.failed = err },
	}
	in := c.r.WithContext(c.ctx)
	if in.Body != nil && in.Body != http.NoBody {
		in.Body = http.MaxBytesReader(c.w, &patient{ReadCloser: in.Body, rc: c.rc}, portBody)
	}
	return v.refused(ctx, c.unbroken(func() { proxy.ServeHTTP(content.NewWriter(c.w), in) }))
}

func query(u *url.URL) string {
	if u.RawQuery == "" {
		return ""
	}
	return "?" + u.RawQuery
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// unbroken serves, and says whether an answer that had begun broke off.
func (c *call) unbroken(serve func()) (broke bool) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			broke = true
		default:
			panic(p)
		}
	}()
	serve()
	return false
}

// refused is the fault of a request that has failed, nil where it has not.
func (v *visit) refused(ctx context.Context, broke bool) error {
	var f *fault.Error
	var over *http.MaxBytesError
	switch err := v.failed; {
	case err == nil && broke:
		return v.noAnswer("the program at port %d broke its answer off")
	case err == nil:
		return nil
	case errors.As(err, &over):
		return edge.TooLarge(portBody)
	case ctx.Err() != nil && errors.As(context.Cause(ctx), &f):
		return f
	case v.ctx.Err() != nil:
		return v.ctx.Err()
	case errors.As(err, &f):
		return f
	default:
		return v.noAnswer("the program at port %d gave no answer of HTTP").Because(err)
	}
}

func (v *visit) noAnswer(format string) *fault.Error {
	return fault.Newf(fault.Unavailable, fault.ReasonPortUnavailable, format, v.port).WithRetry(time.Second)
}

// patient bounds how long a client may take for each piece of a body.
type patient struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *patient) Read(p []byte) (int, error) {
	_ = b.rc.SetReadDeadline(time.Now().Add(edge.WriteTime))
	return b.ReadCloser.Read(p)
}
