package httpapi

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// Words of the contract for the states of a sandbox.
const (
	creating    = "creating"
	running     = "running"
	terminating = "terminating"
	terminated  = "terminated"
	failed      = "failed"
)

// status is the contract's word for a state. Terminated is what was observed gone, never what was only asked for.
func status(state string) string {
	switch state {
	case sandbox.Ready:
		return running
	case sandbox.Failed:
		return failed
	case sandbox.Destroying:
		return terminating
	case sandbox.Destroyed:
		return terminated
	default:
		return creating
	}
}

// names are those that the fields of a request have here, by the paths that they have in the contract of gRPC.
type names map[string]string

// of renames a path, also of an element or entry.
func (n names) of(path string) string {
	head, rest := path, ""
	if i := strings.IndexByte(path, '['); i >= 0 {
		head, rest = path[:i], path[i:]
	}
	if name, ok := n[head]; ok {
		return name + rest
	}
	return path
}

// in renames the fields of a refusal.
func (n names) in(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || len(f.Fields) == 0 {
		return err
	}
	fields := make(map[string]string, len(f.Fields))
	for path, what := range f.Fields {
		fields[n.of(path)] = what
	}
	return f.WithFields(fields)
}

var createNames = names{
	"limits.cpu_millis": "cpus", "limits.memory_bytes": "memory", "limits.max_runtime": "timeout_seconds", "limits.idle_timeout": "idle_timeout_seconds", "image": "image", "env_vars": "env",
}

// Isolations that are served, all by gVisor.
var isolations = []string{"container", "gvisor"}

// created is the answer to a create. It is the same however often the create is repeated.
type created struct {
	SandboxID string    `json:"sandbox_id"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Startup   startup   `json:"startup_metrics"`
}

// startup are the milliseconds of a start: null for what has not happened yet.
type startup struct {
	TotalMS *float64           `json:"total_ms"`
	Start   *string            `json:"start"`
	Phases  map[string]float64 `json:"phases"`
}

func (c *call) create() error {
	o, release, err := c.object(maxBody)
	defer release()
	if err != nil {
		return err
	}
	req := &computev1.CreateSandboxRequest{Image: c.opt.Image, EnvVars: o.texts("env"), Limits: &computev1.ResourceLimits{CpuMillis: o.cpus("cpus")}}
	if image, ok := o.text("image"); ok {
		req.Image = image
	}
	if os, ok := o.text("desktop_os"); ok && os != "linux" {
		o.bad["desktop_os"] = "is not supported; there is: linux"
	}
	if mode, ok := o.text("isolation"); ok && mode != isolations[0] && mode != isolations[1] {
		o.bad["isolation"] = "is not supported; there are: " + strings.Join(isolations, ", ")
	}
	if size, ok := o.text("memory"); ok {
		n, err := usecase.ParseQuantity(size)
		if err != nil || n == 0 {
			o.bad["memory"] = "must be a Kubernetes quantity over 0 such as 1Gi or 512M"
		}
		req.Limits.MemoryBytes = n
	}
	if seconds, ok := o.whole("timeout_seconds", math.MaxInt32); ok {
		req.Limits.MaxRuntime = durationpb.New(time.Duration(seconds) * time.Second)
	}
	if seconds, ok := o.whole("idle_timeout_seconds", math.MaxInt32); ok {
		req.Limits.IdleTimeout = durationpb.New(time.Duration(seconds) * time.Second)
	}
	o.add(createNames.in(c.use.CheckCreate(req)))
	if err := c.check(o, req, createNames); err != nil {
		return err
	}
	s, err := c.use.Create(c.ctx, c.p, c.key, req)
	if err != nil {
		return createNames.in(err)
	}
	c.w.Header().Set("Location", Base+"/sandbox/"+s.ID+"/status")
	return c.answer(http.StatusCreated, created{
		SandboxID: s.ID, Status: creating, CreatedAt: s.CreatedAt, ExpiresAt: s.Requested.GetExpiresAt().AsTime(), Startup: startup{Phases: map[string]float64{"accepted": 0}},
	})
}

// sandboxStatus is all that is shown of a sandbox.
type sandboxStatus struct {
	SandboxID string     `json:"sandbox_id"`
	Status    string     `json:"status"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at"`
	ReadyAt   *time.Time `json:"ready_at"`
	// TerminatedAt is when nothing of it ran any more, ReclaimedAt when nothing was left of it, its workspace included.
	TerminatedAt *time.Time `json:"terminated_at"`
	ReclaimedAt  *time.Time `json:"reclaimed_at"`
	Image        string     `json:"image"`
	// IdleTimeout is for how many seconds nothing may be done with it; 0: for as long as it lives.
	IdleTimeout float64 `json:"idle_timeout_seconds,omitempty"`
	// Reason and Message say why it ends, failed or is not ready yet.
	Reason  string   `json:"reason,omitempty"`
	Message string   `json:"message,omitempty"`
	Startup *startup `json:"startup_metrics,omitempty"`
}

func shown(s sandbox.Sandbox) sandboxStatus {
	out := sandboxStatus{
		SandboxID: s.ID, Status: status(s.State), CreatedAt: s.CreatedAt, ExpiresAt: at(s.ExpiresAt), ReadyAt: at(s.ReadyAt), Image: s.Image,
		IdleTimeout: s.IdleTimeout().Seconds(), Reason: s.Reason, Message: s.Message,
	}
	if s.State == sandbox.Destroyed {
		out.TerminatedAt = at(s.EndedAt)
	}
	return out
}

func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (c *call) describe() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	l, err := c.use.Life(c.ctx, c.p, id)
	if err != nil {
		return err
	}
	out := shown(l.Sandbox)
	out.ReclaimedAt = at(l.Reclaimed)
	out.Startup = started(l.Start)
	return c.answer(http.StatusOK, out)
}

func started(s *usecase.Start) *startup {
	out := &startup{Phases: map[string]float64{"accepted": 0}}
	if s == nil {
		return out
	}
	total, kind := 0.0, "cold"
	if s.Warm {
		kind = "warm"
	}
	for _, p := range s.Phases {
		ms := float64(p.Took.Microseconds()) / 1000
		out.Phases[p.Name] = ms
		total += ms
	}
	total = math.Round(total*1000) / 1000
	out.TotalMS, out.Start = &total, &kind
	return out
}

type stopped struct {
	Success   bool   `json:"success"`
	SandboxID string `json:"sandbox_id"`
	Status    string `json:"status"`
}

// stop answers once the end is decided, and waits some time for it.
func (c *call) stop() error {
	id, err := c.sandbox()
	if err == nil {
		err = c.none()
	}
	if err != nil {
		return err
	}
	s, err := c.use.Stop(c.ctx, c.p, c.key, id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, stopped{Success: true, SandboxID: s.ID, Status: status(s.State)})
}

// extended says until when a sandbox lives at least.
type extended struct {
	Success   bool      `json:"success"`
	SandboxID string    `json:"sandbox_id"`
	ExpiresAt time.Time `json:"expires_at"`
}

// extend gives a sandbox more time, from now on.
func (c *call) extend() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	o, release, err := c.object(1 << 10)
	defer release()
	if err != nil {
		return err
	}
	seconds, given := o.whole("timeout_seconds", math.MaxInt32)
	if !given && o.bad["timeout_seconds"] == "" {
		o.bad["timeout_seconds"] = "is needed: the seconds that it is to live from now on, at least"
	}
	if err := o.err(); err != nil {
		return err
	}
	until, err := c.use.Extend(c.ctx, c.p, c.key, id, time.Duration(seconds)*time.Second)
	if err != nil {
		return names{"timeout": "timeout_seconds"}.in(err)
	}
	return c.answer(http.StatusOK, extended{Success: true, SandboxID: id, ExpiresAt: until})
}

type sandboxes struct {
	Sandboxes []sandboxStatus `json:"sandboxes"`
	// NextCursor is empty on the last page.
	NextCursor string `json:"next_cursor"`
}

const defaultPage, maxPage = 50, 200

func (c *call) list() error {
	query := c.r.URL.Query()
	limit := defaultPage
	if query.Has("limit") {
		n, err := strconv.Atoi(query.Get("limit"))
		if err != nil || n < 1 || n > maxPage {
			return invalid(map[string]string{"limit": "must be an integer from 1 to 200"})
		}
		limit = n
	}
	views, next, err := c.use.List(c.ctx, c.p, usecase.ListFilter{Cursor: query.Get("cursor"), Limit: limit})
	if err != nil {
		return names{"page.cursor": "cursor"}.in(err)
	}
	out := sandboxes{Sandboxes: []sandboxStatus{}, NextCursor: next}
	for _, v := range views {
		out.Sandboxes = append(out.Sandboxes, shown(sandbox.FromView(v)))
	}
	return c.answer(http.StatusOK, out)
}

// document answers the OpenAPI document.
func (c *call) document() error {
	c.Begin(http.StatusOK, mediaJSON)
	_, _ = c.w.Write(c.spec) // the reader is gone if this fails
	return nil
}
