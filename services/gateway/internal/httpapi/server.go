// Package httpapi is the controller HTTP API: it turns requests into use cases and answers back into JSON, and nothing else.
package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// Base is the path below which every route stands.
const Base = "/api/v1"

const (
	headerKey       = "Idempotency-Key"
	headerExecution = "Sandtrail-Execution-Id"
)

// unaryTime bounds calls that do not wait for a command.
const unaryTime = 2 * time.Minute

// Options are what differs from one deployment to another.
type Options struct {
	// Image of a sandbox whose request names none.
	Image string
	// Origins that browsers may call from; none: no other than the API's own. "*" is any.
	Origins []string
	// Heartbeat is the longest silence on a stream of events.
	Heartbeat time.Duration
	// BodyTime is how long a body may take to arrive.
	BodyTime time.Duration
	// PendingWait is how long an answer waits for an end that was seen to be recorded.
	PendingWait time.Duration
	Tracer      trace.TracerProvider
	// MCP is served at /mcp; nil: it is not there.
	MCP MCP
}

// Server serves the API.
type Server struct {
	*edge.Edge
	use     *usecase.UseCases
	opt     Options
	mux     *http.ServeMux
	calls   *prometheus.CounterVec
	spec    []byte
	methods []string
}

// New makes the handler of every path below Base. It fails where its metrics are registered already.
func New(use *usecase.UseCases, around *edge.Edge, opt Options, registry prometheus.Registerer) (*Server, error) {
	s := &Server{Edge: around, use: use, opt: opt, mux: http.NewServeMux()}
	s.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_http_requests_total", Help: "Calls of the HTTP API, by route and status.",
	}, []string{"route", "status"})
	if err := registry.Register(s.calls); err != nil {
		return nil, err
	}
	var err error
	if s.spec, err = Document(); err != nil {
		return nil, err
	}
	for _, r := range routes {
		s.mux.HandleFunc(r.method+" "+Base+r.path, func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, r) })
		if !slices.Contains(s.methods, r.method) {
			s.methods = append(s.methods, r.method)
		}
	}
	if opt.MCP != nil {
		s.mux.HandleFunc(mcpRoute.path, func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, mcpRoute) })
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		s.serve(w, req, route{id: "none", open: true, do: s.nothing})
	})
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.crossOrigin(w, r) {
		return
	}
	s.mux.ServeHTTP(w, r)
}

// crossOrigin lets browsers in from the origins that are configured; true where the request was only the question whether it may come.
func (s *Server) crossOrigin(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || !s.allowed(origin) {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", strings.Join([]string{edge.HeaderCorrelation, headerExecution, "Retry-After", "Location", "Mcp-Session-Id"}, ", "))
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", strings.Join(s.methods, ", "))
	h.Set("Access-Control-Allow-Headers", strings.Join([]string{
		"Authorization", "Content-Type", headerKey, edge.HeaderCorrelation, edge.HeaderTrace, "Last-Event-ID", "Mcp-Session-Id", "Mcp-Protocol-Version",
	}, ", "))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func (s *Server) allowed(origin string) bool {
	return slices.Contains(s.opt.Origins, origin) || slices.Contains(s.opt.Origins, "*")
}

// route is one method and path.
type route struct {
	method, path string
	// outside: path is not below Base.
	outside bool
	// id names it in metrics, logs and the document.
	id, about string
	// open routes need no credential; others any of the scopes.
	open   bool
	scopes tenant.Scopes
	// body is the most bytes of one, 0: none is taken; media is its type.
	body  int64
	media string
	// keyed routes take an idempotency key; query are the parameters.
	keyed bool
	query []string
	// long calls end when what they wait for does.
	long bool
	do   func(*call) error
	// What the document says: the body's schema; a value of the type of each answer, nil for bytes; one of the events of a stream; and the
	// statuses of errors beside those that every route has.
	request schema
	answers map[int]any
	stream  any
	errors  []int
}

func (r route) where() string {
	if r.outside {
		return r.path
	}
	return Base + r.path
}

// call is one request under way.
type call struct {
	*Server
	*edge.Reply
	w   http.ResponseWriter
	r   *http.Request
	rc  *http.ResponseController
	ctx context.Context //nolint:containedctx // it is the request's, with what the edge adds
	p   principal.Principal
	// memory is the share of the caller's tenant.
	memory stored.Share
	// key is the idempotency key, empty without one.
	key string
	// release gives back what the credential holds, once the call is answered.
	release func()
}

// serve puts the edge around a route's handler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, to route) {
	begin := time.Now()
	most := unaryTime
	if to.long {
		most = 0
	}
	ctx, end := s.Open(w, r, s.opt.Tracer, "http."+to.id, to.where(), most)
	defer end()
	c := &call{Server: s, Reply: edge.NewReply(w), w: w, r: r, rc: http.NewResponseController(w), ctx: ctx, release: func() {}}
	defer func() { c.release() }()
	defer func() { s.calls.WithLabelValues(to.id, strconv.Itoa(c.Status)).Inc() }()
	err := s.Guard(ctx, func() error { return c.run(to) })
	if err = s.Close(c.ctx, to.id, begin, err); err != nil {
		c.fail(err)
	}
}

// run is the call from its credential on.
func (c *call) run(to route) error {
	if to.open {
		return to.do(c)
	}
	ctx, who, release, err := c.Admit(c.ctx, edge.Admission{Credential: credential(c.r.Header), Scopes: to.scopes, Check: func() error {
		bad := map[string]string{}
		c.readKey(to, bad)
		c.readQuery(to, bad)
		return invalid(bad)
	}})
	c.ctx, c.p, c.memory, c.release = ctx, who.Principal, who.Memory, release
	if err != nil {
		return err
	}
	return to.do(c)
}

// credential is the one of a request; two are none that could be good.
func credential(h http.Header) string {
	switch all := h["Authorization"]; len(all) {
	case 0:
		return ""
	case 1:
		if all[0] != "" {
			return all[0]
		}
	}
	return "none"
}

func (c *call) readKey(to route, bad map[string]string) {
	all := c.r.Header[headerKey]
	switch {
	case len(all) == 0:
	case !to.keyed:
		// Of no meaning where nothing is changed.
	case len(all) > 1:
		bad["idempotency-key"] = "is given twice"
	case all[0] == "":
		bad["idempotency-key"] = "must be 1 to 200 printable ASCII characters without spaces"
	default:
		c.key = all[0]
	}
}

func (c *call) readQuery(to route, bad map[string]string) {
	if strings.Contains(c.r.URL.RawQuery, ";") {
		bad["query"] = "cannot be read"
		return
	}
	for name, values := range c.r.URL.Query() {
		switch {
		case !slices.Contains(to.query, name):
			bad[name] = "is not a parameter of this route"
		case len(values) > 1:
			bad[name] = "is given twice"
		}
	}
}

// sandbox is the id in the path. What is no id is one that nobody has.
func (c *call) sandbox() (string, error) {
	return c.pathID("id", fault.ReasonSandboxNotFound, "sandbox")
}

func (c *call) execution() (string, error) {
	return c.pathID("execution_id", fault.ReasonExecNotFound, "exec")
}

func (c *call) pathID(name string, reason fault.Reason, what string) (string, error) {
	id := strings.ToLower(c.r.PathValue(name))
	if !ids.Valid(id) {
		return "", fault.Newf(fault.NotFound, reason, "there is no %s %.64q", what, c.r.PathValue(name))
	}
	return id, nil
}

// nothing answers for a path, or a method of a path, that no route has.
func (s *Server) nothing(c *call) error {
	var allowed []string
	for _, m := range s.methods {
		other := c.r.Clone(c.ctx)
		other.Method = m
		if _, pattern := s.mux.Handler(other); pattern != "/" && pattern != "" {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return fault.New(fault.NotFound, fault.ReasonRouteNotFound, "there is no such route; see "+Base+"/openapi.json")
	}
	slices.Sort(allowed)
	c.w.Header().Set("Allow", strings.Join(allowed, ", "))
	return fault.New(fault.FailedPrecondition, fault.ReasonMethod, "this path takes "+strings.Join(allowed, ", "))
}
