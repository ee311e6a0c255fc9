// Package sandboxapi is the HTTP API of named sandboxes: it turns requests into use cases and answers back into JSON, and nothing else. Its
// field names, statuses and event names are those of a published API, whose clients must work as they are.
package sandboxapi

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/interpreter"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// Base is the path below which every route but /health stands.
const Base = "/api/v1"

const (
	headerToken     = "X-Sandrpod-Token"
	headerTenant    = "X-Sandtrail-Tenant"
	headerKey       = "Idempotency-Key"
	headerExecution = "Sandtrail-Execution-Id"
	headerSandbox   = "Sandtrail-Sandbox-Id"
)

// unaryTime bounds calls that do not wait for a command or a start.
const unaryTime = 2 * time.Minute

// Options are what differs from one deployment to another.
type Options struct {
	// Image of a sandbox whose request names none.
	Image string
	// Tenant of callers without a credential, where such are let in, unless they name one.
	Tenant string
	// Version of the program, as /health tells it.
	Version string
	// BodyTime is how long a JSON body may take to arrive.
	BodyTime time.Duration
	// Heartbeat is the longest silence on a stream of MCP.
	Heartbeat time.Duration
	// MCP serves the endpoint of each sandbox.
	MCP MCP
	// Signer signs the URLs of previews. It has the same key at every gateway of the deployment.
	Signer Signer
	Tracer trace.TracerProvider
}

// Server serves the API.
type Server struct {
	*edge.Edge
	use   *usecase.UseCases
	opt   Options
	mux   *http.ServeMux
	calls *prometheus.CounterVec
	asker interpreter.Asker
	ports *http.Transport
}

// New makes the handler. It fails where its metrics are registered already.
func New(use *usecase.UseCases, around *edge.Edge, opt Options, registry prometheus.Registerer) (*Server, error) {
	s := &Server{Edge: around, use: use, opt: opt, mux: http.NewServeMux(), ports: transport(use)}
	s.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_named_requests_total", Help: "Calls of the HTTP API of named sandboxes, by route and status.",
	}, []string{"route", "status"})
	if err := registry.Register(s.calls); err != nil {
		return nil, err
	}
	for _, r := range routes {
		s.mux.HandleFunc(strings.TrimSpace(r.method+" "+r.path), func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, r, target{}) })
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		s.serve(w, req, route{id: "none", open: true, do: (*call).nothing}, target{})
	})
	return s, nil
}

// Takes reports whether a request is for this API and not for the controller's, which has one path in common with it: who shows an ApiKey
// there means the other one.
func Takes(r *http.Request) bool {
	if r.URL.Path == "/health" {
		return true
	}
	path, below := strings.CutPrefix(r.URL.Path, Base+"/")
	if !below {
		return false
	}
	head, rest, more := strings.Cut(path, "/")
	switch head {
	case "jobs", "poders", "preview", "tokens":
		return true
	case "sandboxes":
		return more && rest != "" || r.Method != http.MethodGet || !strings.HasPrefix(strings.ToLower(r.Header.Get("Authorization")), "apikey ")
	}
	return false
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if to, where, ok := ported(r); ok {
		s.serve(w, r, to, where)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// route is one method and path.
type route struct {
	// method is empty for every one.
	method, path string
	// id names it in metrics and logs.
	id string
	// open routes need no credential; others any of the scopes.
	open   bool
	scopes tenant.Scopes
	// long calls end when what they wait for does. The query of a raw one is not for us.
	long, raw bool
	do        func(*call) error
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
	// target is that of a request for a port.
	target target
	// memory is the share of the caller's tenant.
	memory stored.Share
	// release gives back what the credential holds, once the call is answered.
	release func()
}

// serve puts the edge around a route's handler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, to route, where target) {
	begin := time.Now()
	most := unaryTime
	if to.long {
		most = 0
	}
	ctx, end := s.Open(w, r, s.opt.Tracer, "named."+to.id, to.path, most)
	defer end()
	c := &call{Server: s, Reply: edge.NewReply(w), w: w, r: r, rc: http.NewResponseController(w), ctx: ctx, target: where, release: func() {}}
	defer func() { c.release() }()
	defer func() { s.calls.WithLabelValues(to.id, strconv.Itoa(c.Status)).Inc() }()
	err := s.Guard(ctx, func() error { return c.run(to) })
	if err = s.Close(c.ctx, "named."+to.id, begin, err); err != nil {
		c.fail(err)
	}
}

// run is the call from its credential on.
func (c *call) run(to route) error {
	if to.open {
		return to.do(c)
	}
	ctx, who, release, err := c.Admit(c.ctx, edge.Admission{Credential: credential(c.r.Header), Local: c.local, Scopes: to.scopes, Check: func() error {
		if !to.raw && strings.Contains(c.r.URL.RawQuery, ";") {
			return field("query", "cannot be read")
		}
		return nil
	}})
	c.ctx, c.p, c.memory, c.release = ctx, who.Principal, who.Memory, release
	if err != nil {
		return err
	}
	return to.do(c)
}

// local says for which tenant a caller without a credential acts: for one, because names are a tenant's.
func (c *call) local(p principal.Principal) (principal.Principal, error) {
	if err := sameSite(c.r); err != nil {
		return p, err
	}
	p.Tenant = c.opt.Tenant
	if given := c.r.Header.Get(headerTenant); given != "" {
		if !subject.ValidTenant(given) {
			return p, field(headerTenant, "must be 1 to 64 of A-Z a-z 0-9 _ -")
		}
		p.Tenant = given
	}
	return p, nil
}

// sameSite refuses what a browser sends for a page of another site: where no credential is asked for, a page that somebody on this host
// looks at could run commands. A name that leads here by a trick of DNS is another site too.
func sameSite(r *http.Request) error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	origin := r.Header.Get("Origin")
	ours := origin == "" || origin == "http://"+r.Host
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		ours = false
	}
	if ours && (host == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fault.New(fault.PermissionDenied, fault.ReasonKeyMissing, "without a credential only programs on this host are let in, by a loopback address")
}

// credential is the one of a request, as the door takes it: these clients show a key in a header of its own or behind Bearer. Their own
// header counts where both are there. Two of one kind are none that could be good.
func credential(h http.Header) string {
	if all := h[headerToken]; len(all) > 0 {
		if len(all) > 1 || all[0] == "" {
			return "none"
		}
		return principal.Scheme + " " + all[0]
	}
	all := h["Authorization"]
	switch {
	case len(all) == 0:
		return ""
	case len(all) > 1 || all[0] == "":
		return "none"
	}
	scheme, key, ok := strings.Cut(all[0], " ")
	if key = strings.TrimSpace(key); ok && strings.EqualFold(scheme, "Bearer") && strings.Count(key, ".") != 2 {
		return principal.Scheme + " " + key
	}
	return all[0] // a token of an issuer has two dots, a key none
}

// box is the id of the sandbox that the path names.
func (c *call) box() (string, error) { return c.find(c.r.PathValue("name")) }

func (c *call) find(name string) (string, error) {
	id, err := c.use.Named(c.ctx, c.p, name)
	if err == nil {
		c.w.Header().Set(headerSandbox, id)
	}
	return id, err
}

// nothing answers for a path, or a method of a path, that no route has.
func (c *call) nothing() error {
	return fault.Newf(fault.NotFound, fault.ReasonRouteNotFound, "there is no such route: %.16s %.200q", c.r.Method, c.r.URL.Path)
}

// health needs no credential.
func (c *call) health() error {
	status, code := "ok", http.StatusOK
	if !c.Connected() {
		status, code = "unavailable", http.StatusServiceUnavailable
	}
	return c.answer(code, map[string]string{"status": status, "version": c.opt.Version})
}
