package sandboxapi

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// States of a sandbox in the words of the published API. TERMINATED is final.
const (
	statePending    = "PENDING"
	stateStarting   = "STARTING"
	stateRunning    = "RUNNING"
	stateStopping   = "STOPPING"
	stateStopped    = "STOPPED"
	stateError      = "ERROR"
	stateTerminated = "TERMINATED"
)

// local is the region and the provider that mean any.
const local = "local"

// reserved are names that paths of the API have already.
var reserved = []string{"execute", "stream"}

// state is the word for a state. What is being deleted is stopping; only what was observed gone is terminated.
func state(s string) string {
	switch s {
	case sandbox.Starting:
		return stateStarting
	case sandbox.Ready:
		return stateRunning
	case sandbox.Stopping, sandbox.Destroying:
		return stateStopping
	case sandbox.Stopped:
		return stateStopped
	case sandbox.Failed:
		return stateError
	case sandbox.Destroyed:
		return stateTerminated
	default:
		return statePending
	}
}

// record is all that is shown of a sandbox.
type record struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Region       string `json:"region"`
	ProviderType string `json:"provider_type"`
	InstanceType string `json:"instance_type"`
	ImageID      string `json:"image_id"`
	State        string `json:"state"`
	// IP is empty: a sandbox has no address that anybody could reach.
	IP    string `json:"ip"`
	Owner string `json:"owner"`
	// TTLSeconds is how long it may live, from its creation on, with what it was extended by.
	TTLSeconds  int64             `json:"ttl_seconds"`
	PoderID     string            `json:"poder_id"`
	ContainerID string            `json:"container_id"`
	Arch        string            `json:"arch"`
	OS          string            `json:"os"`
	OSVersion   string            `json:"os_version"`
	Labels      map[string]string `json:"labels"`
	CreatedAt   time.Time         `json:"created_at"`
	// LastActivity is the last time at which something happened in it, as far as this answer knows.
	LastActivity time.Time `json:"last_activity"`
	// Reason and ErrorMessage say why it is in this state; Placement why on this worker.
	Reason       string     `json:"reason,omitempty"`
	ErrorMessage string     `json:"error_message,omitempty"`
	Placement    []string   `json:"placement_reasons,omitempty"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty"`
	// IdleTimeoutSeconds is for how long nothing may be done with it; 0: for as long as it lives.
	IdleTimeoutSeconds int64 `json:"idle_timeout_seconds,omitempty"`
	// Egress is where its programs may connect to; none: nowhere.
	Egress *egressRules `json:"egress,omitempty"`
}

func shown(s sandbox.Sandbox) record {
	r := s.Requested
	out := record{
		ID: s.ID, Name: orElse(s.Name, s.ID), Region: orElse(r.GetRegion(), orElse(r.GetPlacement().GetRegion(), local)),
		ProviderType: orElse(r.GetProvider(), local), InstanceType: r.GetInstanceType(), ImageID: s.Image, State: state(s.State), Owner: s.Tenant,
		TTLSeconds: int64(life(s) / time.Second),
		PoderID:    s.Worker, ContainerID: s.Hostname, Arch: "amd64", OS: "linux", Labels: s.Labels, CreatedAt: s.CreatedAt,
		LastActivity: latest(s.CreatedAt, s.ReadyAt, s.RunningSince, s.EndedAt), Placement: r.GetPlacement().GetReasons(),
		IdleTimeoutSeconds: int64(s.IdleTimeout() / time.Second), Egress: shownEgress(s.Egress),
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if !s.ExpiresAt.IsZero() {
		out.ExpiresAt = &s.ExpiresAt
	}
	if s.State != sandbox.Ready {
		out.Reason, out.ErrorMessage = s.Reason, s.Message
	}
	return out
}

// life is how long a sandbox may live from its creation on; 0: for ever.
func life(s sandbox.Sandbox) time.Duration {
	if s.ExpiresAt.IsZero() {
		return 0
	}
	return s.ExpiresAt.Sub(s.CreatedAt).Round(time.Second)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func latest(all ...time.Time) time.Time {
	var last time.Time
	for _, t := range all {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// creation is the body of a create.
type creation struct {
	Name         string            `json:"name"`
	Region       string            `json:"region"`
	ProviderType string            `json:"provider_type"`
	InstanceType string            `json:"instance_type"`
	ImageID      string            `json:"image_id"`
	TTLSeconds   int64             `json:"ttl_seconds"`
	CPUCores     float64           `json:"cpu_cores"`
	MemoryMB     int64             `json:"memory_mb"`
	Async        bool              `json:"async"`
	Labels       map[string]string `json:"labels"`
	Env          map[string]string `json:"env"`
	// IdleTimeoutSeconds is for how long nothing may be done with it; 0: for as long as it lives.
	IdleTimeoutSeconds int64 `json:"idle_timeout_seconds"`
	// WorkerLabels are what the labels of its worker must say.
	WorkerLabels map[string]string `json:"worker_labels"`
	// Egress is where its programs may connect to; none: nowhere.
	Egress *egressRules `json:"egress"`
}

// created is the answer to a create.
type created struct {
	JobID   string `json:"job_id"`
	Status  string `json:"status"`
	Sandbox record `json:"sandbox"`
}

// ourNames are the fields of a create and a change as they are called here, by their paths in the contract of gRPC.
var ourNames = map[string]string{
	"after_chunk":       "after",
	"limits.cpu_millis": "cpu_cores", "limits.memory_bytes": "memory_mb", "limits.max_runtime": "ttl_seconds", "timeout": "ttl_seconds",
	"limits.idle_timeout": "idle_timeout_seconds", "image": "image_id", "env_vars": "env",
}

func renamed(path string) string {
	head, rest := path, ""
	if i := strings.IndexByte(path, '['); i >= 0 {
		head, rest = path[:i], path[i:]
	}
	return orElse(ourNames[head], head) + rest
}

// rename gives the fields of a refusal the names that they have here.
func rename(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || len(f.Fields) == 0 {
		return err
	}
	fields := make(map[string]string, len(f.Fields))
	for path, what := range f.Fields {
		fields[renamed(path)] = what
	}
	return f.WithFields(fields)
}

// request is what a body asks for, and what is wrong with it.
func (c *call) request(b creation) (*computev1.CreateSandboxRequest, usecase.Wish, error) {
	bad := map[string]string{}
	if !sandbox.ValidName(b.Name) {
		bad["name"] = sandbox.NameRule
	} else if slices.Contains(reserved, b.Name) {
		bad["name"] = "is the name of a route; take another"
	}
	if len(b.WorkerLabels) > maxFilters {
		bad["worker_labels"] = fmt.Sprintf("must be at most %d", maxFilters)
	}
	for name, text := range map[string]string{"region": b.Region, "instance_type": b.InstanceType, "provider_type": b.ProviderType} {
		if len(text) > 64 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			bad[name] = "must be at most 64 printable ASCII characters"
		}
	}
	req := &computev1.CreateSandboxRequest{Image: orElse(b.ImageID, c.opt.Image), Labels: b.Labels, EnvVars: b.Env, Limits: &computev1.ResourceLimits{}}
	switch millis := math.Round(b.CPUCores * 1000); {
	case b.CPUCores == 0:
	case millis < 1 || millis > math.MaxInt32:
		bad["cpu_cores"] = "must be a number of cores, at least 0.001"
	default:
		req.Limits.CpuMillis = uint32(millis)
	}
	switch {
	case b.MemoryMB == 0:
	case b.MemoryMB < 0 || b.MemoryMB > 1<<30:
		bad["memory_mb"] = "must be a number of MiB over 0"
	default:
		req.Limits.MemoryBytes = uint64(b.MemoryMB) << 20
	}
	switch {
	case b.TTLSeconds == 0:
	case b.TTLSeconds < 0 || b.TTLSeconds > math.MaxInt32:
		bad["ttl_seconds"] = "must be a number of seconds over 0"
	default:
		req.Limits.MaxRuntime = durationpb.New(time.Duration(b.TTLSeconds) * time.Second)
	}
	switch {
	case b.IdleTimeoutSeconds == 0:
	case b.IdleTimeoutSeconds < 0 || b.IdleTimeoutSeconds > math.MaxInt32:
		bad["idle_timeout_seconds"] = "must be a number of seconds over 0"
	default:
		req.Limits.IdleTimeout = durationpb.New(time.Duration(b.IdleTimeoutSeconds) * time.Second)
	}
	broken, err := c.Violations(req)
	if err != nil {
		return nil, usecase.Wish{}, err
	}
	var f *fault.Error
	if errors.As(c.use.CheckCreate(req), &f) {
		maps.Copy(broken, f.Fields)
	}
	for path, what := range broken {
		if name := renamed(path); bad[name] == "" {
			bad[name] = what
		}
	}
	w := usecase.Wish{Name: b.Name, Region: b.Region, Provider: b.ProviderType, InstanceType: b.InstanceType, WorkerLabels: b.WorkerLabels}
	if b.Egress != nil {
		w.Egress = b.Egress.read(bad)
	}
	if b.Region != local {
		w.InRegion = b.Region
	}
	if b.ProviderType != local {
		w.OnProvider = b.ProviderType
	}
	return req, w, invalid(bad)
}

// create answers once the sandbox is up, or at once where the body says async. One that does not start is an error then, and stays until it
// is deleted.
func (c *call) create() error {
	var b creation
	if err := c.object(&b); err != nil {
		return err
	}
	s, err := c.made(b, "")
	if err != nil {
		return err
	}
	status, progress := http.StatusCreated, jobRunning
	if b.Async {
		status = http.StatusAccepted
	}
	switch s.State {
	case sandbox.Requested, sandbox.Scheduled:
		progress = jobPending
	case sandbox.Ready:
		progress = jobCompleted
	case sandbox.Failed:
		progress = jobFailed
	}
	c.w.Header().Set("Location", Base+"/sandboxes/"+s.Name)
	return c.answer(status, created{JobID: jobID(jobCreate, s.ID), Status: progress, Sandbox: shown(s)})
}

// createOn is create on one worker; it answers the record.
func (c *call) createOn() error {
	var b creation
	if err := c.object(&b); err != nil {
		return err
	}
	s, err := c.made(b, c.r.PathValue("id"))
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, shown(s))
}

func (c *call) made(b creation, worker string) (sandbox.Sandbox, error) {
	key := c.r.Header.Get(headerKey)
	req, wish, err := c.request(b)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	wish.OnWorker = worker
	s, err := c.use.CreateNamed(c.ctx, c.p, key, req, wish)
	if err != nil || b.Async {
		return s, rename(err)
	}
	return c.use.AwaitReady(c.ctx, s, createWait)
}

// createWait is how long a create waits that is not async.
const createWait = 5 * time.Minute

// maxListed bounds a list. Over it the oldest are left out, and the answer says so.
const maxListed = 10_000

type sandboxes struct {
	Sandboxes []record `json:"sandboxes"`
	// Truncated: there are more, older ones.
	Truncated bool `json:"truncated,omitempty"`
}

// list gives all sandboxes of the tenant that are not gone, newest first. label=NAME=VALUE, state= and name= narrow it.
func (c *call) list() error {
	heard, err := c.use.Hear(c.ctx)
	if err != nil {
		return err
	}
	keep, err := c.filter(heard)
	if err != nil {
		return err
	}
	views, err := c.use.Everything(c.ctx, c.p, maxListed+1, keep)
	if err != nil {
		return err
	}
	out := sandboxes{Sandboxes: []record{}}
	for i, v := range views {
		if i == maxListed {
			out.Truncated = true
			break
		}
		out.Sandboxes = append(out.Sandboxes, seen(sandbox.FromView(v), heard))
	}
	if err := heard.Err(); err != nil {
		return err
	}
	return c.answer(http.StatusOK, out)
}

// maxFilters bounds the labels of one question.
const maxFilters = 32

func (c *call) filter(heard *usecase.Hearing) (func(*commandsv1.SandboxView) bool, error) {
	query := c.r.URL.Query()
	labels := map[string]string{}
	for i, l := range query["label"] {
		name, value, ok := strings.Cut(l, "=")
		if !ok || name == "" || i == maxFilters {
			return nil, field("label", fmt.Sprintf("must be NAME=VALUE, at most %d of them", maxFilters))
		}
		labels[name] = value
	}
	states := query["state"]
	for _, s := range states {
		if !slices.Contains([]string{statePending, stateStarting, stateRunning, stateStopping, stateStopped, stateError, stateTerminated}, s) {
			return nil, field("state", "is none")
		}
	}
	name := query.Get("name")
	return func(v *commandsv1.SandboxView) bool {
		now, _, _ := stateOf(v.GetState(), v.GetWorker(), heard)
		if len(states) == 0 && now == stateTerminated || len(states) > 0 && !slices.Contains(states, now) {
			return false
		}
		if name != "" && v.GetRequested().GetName() != name {
			return false
		}
		for k, want := range labels {
			if got, ok := v.GetRequested().GetLabels()[k]; !ok || got != want {
				return false
			}
		}
		return true
	}, nil
}

func (c *call) get() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	l, err := c.use.Life(c.ctx, c.p, id)
	if err != nil {
		return err
	}
	out, err := c.seenNow(l.Sandbox)
	if err != nil {
		return err
	}
	last, err := c.use.LastDoing(c.ctx, l.Sandbox)
	if err != nil {
		return err
	}
	if last != nil {
		out.LastActivity = latest(out.LastActivity, timeOf(*last))
	}
	return c.answer(http.StatusOK, out)
}

const (
	// haltWait is how long a stop waits, which is shorter than the 30 s that clients wait; it goes on all the same. startWait is how long a
	// start waits.
	haltWait  = 25 * time.Second
	startWait = 5 * time.Minute
)

// turned is the answer to a stop or a start: the record, with the job that says how far it is.
type turned struct {
	record
	JobID string `json:"job_id,omitempty"`
}

// stop ends what runs in a sandbox and keeps its files and its name. Over haltWait the record says STOPPING.
func (c *call) stop() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	s, err := c.use.Halt(c.ctx, c.p, c.r.Header.Get(headerKey), id, haltWait)
	if err != nil {
		return err
	}
	return c.turned(s, jobStop)
}

// start brings a stopped sandbox back, and answers once a command works in it.
func (c *call) start() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	s, err := c.use.Start(c.ctx, c.p, c.r.Header.Get(headerKey), id, startWait)
	if err != nil {
		return err
	}
	return c.turned(s, jobStart)
}

func (c *call) turned(s sandbox.Sandbox, kind string) error {
	h, err := c.use.History(c.ctx, c.p, s.ID)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, turned{record: shown(s), JobID: lastTurn(h, kind)})
}

// remove ends a sandbox and waits some time for it. Its name is free once it is gone.
func (c *call) remove() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	s, err := c.use.Stop(c.ctx, c.p, "", id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, struct {
		record
		JobID string `json:"job_id"`
	}{shown(s), jobID(jobDelete, s.ID)})
}
