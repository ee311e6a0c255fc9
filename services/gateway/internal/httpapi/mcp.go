package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

// MCP answers requests of the Model Context Protocol, of a caller whose name is owner. It returns an error where it has answered nothing.
type MCP interface {
	Serve(w http.ResponseWriter, r *http.Request, owner string) error
}

// mcpBody is the most bytes of a message: a file's content of 1 MiB in which JSON escapes every character, and the rest.
const mcpBody = 8 << 20

// mcpRoute stands beside the API and not in its document: the protocol describes itself.
var mcpRoute = route{path: "/mcp", outside: true, id: "mcp", scopes: tenant.All, long: true, do: (*call).mcp}

// mcpMethods are those of Streamable HTTP.
var mcpMethods = []string{http.MethodDelete, http.MethodGet, http.MethodPost}

func (c *call) mcp() error {
	if origin := c.r.Header.Get("Origin"); origin != "" && !c.allowed(origin) {
		return fault.New(fault.PermissionDenied, fault.ReasonOrigin, "browsers may not call this API from there; see cors-origins")
	}
	if !slices.Contains(mcpMethods, c.r.Method) {
		c.w.Header().Set("Allow", "DELETE, GET, POST")
		return fault.New(fault.FailedPrecondition, fault.ReasonMethod, "this path takes DELETE, GET, POST")
	}
	r := c.r.WithContext(c.ctx)
	if c.r.Method == http.MethodPost {
		// The end of the credential ends what a tool calls, and the answer that says so must still get out.
		ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
		defer cancel()
		defer context.AfterFunc(c.r.Context(), cancel)()
		r = c.r.WithContext(ctx)
		body, release, err := c.read(mcpBody, mediaJSON)
		defer release()
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	w := newStreamed(c)
	defer w.stop()
	err := c.opt.MCP.Serve(w, r, c.p.Tenant+"\x00"+c.p.Actor)
	c.Status = w.answered()
	return err
}

// streamed bounds how long a client may take to read, and breaks the silence of a stream of events, so that no proxy takes it for dead.
type streamed struct {
	*call
	own  http.Header
	done chan struct{}
	over sync.WaitGroup

	mu     sync.Mutex
	status int
	last   time.Time
}

func newStreamed(c *call) *streamed {
	w := &streamed{call: c, own: c.w.Header().Clone(), done: make(chan struct{}), last: time.Now()}
	w.over.Go(w.beat)
	return w
}

// stop ends the beats, before the request does.
func (w *streamed) stop() {
	close(w.done)
	w.over.Wait()
}

func (w *streamed) answered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Header is not the one that is sent: a beat may send that meanwhile.
func (w *streamed) Header() http.Header { return w.own }

func (w *streamed) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head(status)
}

func (w *streamed) head(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	to := w.w.Header()
	clear(to)
	for name, values := range w.own {
		to[name] = values
	}
	w.w.WriteHeader(status)
}

func (w *streamed) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head(http.StatusOK)
	w.last = time.Now()
	_ = w.rc.SetWriteDeadline(w.last.Add(edge.WriteTime)) // one that cannot be set does not bound, and the write fails by itself
	return w.w.Write(b)
}

// FlushError is what http.ResponseController calls.
func (w *streamed) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head(http.StatusOK)
	return w.rc.Flush()
}

func (w *streamed) beat() {
	tick := time.NewTicker(w.opt.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.done:
			return
		}
		if w.comment() != nil {
			return // the client is gone
		}
	}
}

// comment writes what says nothing, where nothing else was written for some time. What was silent for so long is a stream of events: every
// other answer is there at once.
func (w *streamed) comment() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.last) < w.opt.Heartbeat/2 {
		return nil
	}
	if w.status == 0 {
		w.status = http.StatusOK
		w.w.Header().Set("Content-Type", mediaSSE)
		w.w.WriteHeader(http.StatusOK)
	}
	w.last = time.Now()
	_ = w.rc.SetWriteDeadline(w.last.Add(edge.WriteTime))
	if _, err := w.w.Write([]byte(":\n\n")); err != nil {
		return err
	}
	return w.rc.Flush()
}
