package mcpapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/fault"
)

const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
	// stateless is the first version of the protocol without sessions.
	stateless = "2026-07-28"
	// sweepEvery is how often idle sessions are looked for.
	sweepEvery = time.Minute
)

// Handler serves the tools by Streamable HTTP. Who calls it has authenticated the caller, and bounded and read the body.
type Handler struct {
	tools    *Tools
	sessions *table
	// single serves the versions in which a request is a session of its own, and its end that of what it asked for.
	single http.Handler
}

// NewHandler makes the handler; Run ends its sessions. It fails where its metrics are registered already.
func NewHandler(t *Tools) (*Handler, error) {
	h := &Handler{tools: t, sessions: newTable()}
	h.single = mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server { return t.of(boxOf(r.Context())) }, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, DisableLocalhostProtection: true, Logger: t.opt.Log,
	})
	if t.opt.Registry != nil {
		open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandtrail_mcp_sessions", Help: "Open sessions of MCP."},
			func() float64 { return float64(h.sessions.len()) })
		if err := t.opt.Registry.Register(open); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// Run ends sessions that nobody comes back to, and all of them when ctx ends.
func (h *Handler) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	defer h.sessions.clear(errStopping)
	for {
		select {
		case <-tick.C:
			h.sessions.sweep()
		case <-ctx.Done():
			return
		}
	}
}

// Serve answers one request of a caller, who is owner. What it returns is an error where nothing was answered yet.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, owner string) error {
	return h.serve(w, r, owner, "")
}

// ServeOne is Serve with the tools of one sandbox, which take no sandbox_id. Who calls it has found the sandbox to be the caller's.
func (h *Handler) ServeOne(w http.ResponseWriter, r *http.Request, owner, box string) error {
	return h.serve(w, r.WithContext(context.WithValue(r.Context(), boxKey{}, box)), owner, box)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, owner, box string) error {
	id := r.Header.Get(headerSession)
	switch {
	case r.Header.Get(headerProtocol) >= stateless:
		h.single.ServeHTTP(w, r)
		return nil
	case !accepts(r):
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
			WithFields(map[string]string{"accept": "must name application/json and text/event-stream (GET: the latter)"})
	case id == "" && r.Method == http.MethodPost:
		return h.begin(w, r, owner, box)
	case id == "":
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
			WithFields(map[string]string{"mcp-session-id": "is needed"})
	}
	s := h.sessions.use(id, owner, box)
	if s == nil {
		// Clients begin a new session when they read 404.
		return fault.New(fault.NotFound, fault.ReasonSessionNotFound, "there is no such session, or its time is over; initialize a new one")
	}
	defer h.sessions.leave(s)
	if r.Method == http.MethodDelete {
		h.sessions.close(s)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	s.transport.ServeHTTP(w, r)
	return nil
}

// begin serves the first request of a session. One that does not initialize it leaves none.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, owner, box string) error {
	s, err := h.sessions.open(owner, box)
	if err != nil {
		return err
	}
	defer h.sessions.leave(s)
	// The SDK keeps the values of the first request's context for all that the session does, but not its end.
	opened, err := h.tools.of(box).Connect(context.WithValue(r.Context(), sessionKey{}, s), s.transport, nil)
	if err != nil {
		h.sessions.close(s)
		return fault.From(err)
	}
	context.AfterFunc(s.ctx, func() { _ = opened.Close() }) // its calls have ended, or end now
	s.transport.ServeHTTP(w, r)
	if opened.InitializeParams() == nil {
		h.sessions.close(s)
	}
	return nil
}

// accepts reports whether a client reads what a route of the transport may answer.
func accepts(r *http.Request) bool {
	var types []string
	for _, v := range r.Header.Values("Accept") {
		for one := range strings.SplitSeq(v, ",") {
			base, _, _ := strings.Cut(one, ";")
			types = append(types, strings.ToLower(strings.TrimSpace(base)))
		}
	}
	has := func(all ...string) bool {
		return slices.ContainsFunc(all, func(t string) bool { return slices.Contains(types, t) })
	}
	switch r.Method {
	case http.MethodPost:
		return has("application/json", "application/*", "*/*") && has("text/event-stream", "text/*", "*/*")
	case http.MethodGet:
		return has("text/event-stream", "text/*", "*/*")
	default:
		return true
	}
}
