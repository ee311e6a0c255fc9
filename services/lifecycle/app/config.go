package app

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/scheduler"
)

// Roles of a lifecycle process.
const (
	// RoleScheduler decides and places; any number may run.
	RoleScheduler = "scheduler"
	// RoleWorker makes and ends sandboxes on its host; one for each worker name.
	RoleWorker = "worker"
)

// Config of lifecycle. The zero value of a field means the default that its comment names; StateDir and SealKeyFile have none.
type Config struct {
	// Worker is this host's name: local.
	Worker string
	// Region of this host and Provider whose host it is, which creates may ask for: none, and local.
	Region, Provider string
	// Labels are what else creates may ask for, as in disk=fast: at most 32, names of 1 to 63 and values of at most 128 bytes.
	Labels map[string]string
	// Tenants whose sandboxes are placed here: everybody's.
	Tenants []string
	// Roles of this process: scheduler and worker.
	Roles []string
	// Shared: several processes have this worker's role, as replicas in front of a cluster. Commands are shared among them; one at a
	// time reconciles and reports for the worker.
	Shared bool
	// StateDir holds sandboxes, workspaces and images. Needed by the worker role with the driver gvisor.
	StateDir string
	// SealKeyFile holds the key that the gateway seals environments with. Needed by the worker role.
	SealKeyFile string
	// DriverName is what runs the sandboxes of this worker, DriverGVisor or DriverKube: gvisor. Driver is for the one, Kube for the other.
	DriverName string
	Driver     DriverConfig
	Kube       KubeConfig
	// Warm is how many sandboxes are kept ready: none.
	Warm WarmConfig
	// MaxSandboxes on this worker: 200, at most 1,500.
	MaxSandboxes int
	// WorkerCPUMillis and WorkerMemoryBytes are the most that one sandbox may have on this worker: what its host has, and no more than that
	// (driver gvisor).
	WorkerCPUMillis, WorkerMemoryBytes uint64
	// Quotas of tenants that have none of their own; without any nothing is bounded. MaxPerTenant is another way to say that of sandboxes.
	Quotas       tenant.Quotas
	MaxPerTenant int
	// StartDeadline is how long a create may take, from its request on, pulling its image included: 5 min.
	StartDeadline time.Duration
	// KeepWorkspace is how long the workspace of a destroyed sandbox stays: 24 h.
	KeepWorkspace time.Duration
	// OrphanGrace is how long something running that the log does not know is left alone: 2 min. Workspaces that the log does
	// not know are left alone for KeepWorkspace.
	OrphanGrace time.Duration
	// EndTimeout bounds one attempt to end a sandbox: 30 s. It is tried again until it succeeds.
	EndTimeout time.Duration
	// HeartbeatEvery: 5 s. ReconcileEvery: 5 s. SampleEvery: 1 min, rarer for older sandboxes. SweepEvery: 30 s.
	HeartbeatEvery, ReconcileEvery, SampleEvery, SweepEvery time.Duration
	// WorkerWait is how long a create waits where no worker is known: 6 s.
	WorkerWait time.Duration
	// Lanes is how many sandboxes a role works on at the same time: 16. A worker has one for each place.
	Lanes int

	// What a sandbox gets unless its request says otherwise: 1,000 millicores, 1 GiB, 512 processes, 24 h, a workspace of 5 GiB
	// at /workspace. MaxRuntime and the other bounds refuse what is over: 64,000 millicores, 64 GiB, 32,768 processes, 30 days,
	// 100 GiB.
	CPUMillis, MaxCPUMillis           uint32
	MemoryBytes, MaxMemoryBytes       uint64
	PIDs, MaxPIDs                     uint32
	Runtime, MaxRuntime               time.Duration
	WorkspaceBytes, MaxWorkspaceBytes uint64
	MountPath                         string
}

// minWorkspaceBytes is what a file system needs to hold anything at all.
const minWorkspaceBytes = 16 << 20

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) withDefaults() Config {
	set(&c.Worker, "local")
	if len(c.Roles) == 0 {
		c.Roles = []string{RoleScheduler, RoleWorker}
	}
	set(&c.DriverName, DriverGVisor)
	set(&c.MaxSandboxes, 200)
	set(&c.StartDeadline, 5*time.Minute)
	set(&c.KeepWorkspace, 24*time.Hour)
	set(&c.OrphanGrace, 2*time.Minute)
	set(&c.EndTimeout, 30*time.Second)
	set(&c.HeartbeatEvery, 5*time.Second)
	set(&c.ReconcileEvery, 5*time.Second)
	set(&c.SampleEvery, time.Minute)
	set(&c.SweepEvery, 30*time.Second)
	set(&c.WorkerWait, 6*time.Second)
	set(&c.Lanes, 16)
	set(&c.CPUMillis, 1000)
	set(&c.MaxCPUMillis, 64_000)
	set(&c.MemoryBytes, 1<<30)
	set(&c.MaxMemoryBytes, 64<<30)
	set(&c.PIDs, 512)
	set(&c.MaxPIDs, 32_768)
	set(&c.Runtime, 24*time.Hour)
	set(&c.MaxRuntime, 30*24*time.Hour)
	set(&c.WorkspaceBytes, 5<<30)
	set(&c.MaxWorkspaceBytes, 100<<30)
	set(&c.MountPath, "/workspace")
	return c
}

func (c Config) has(role string) bool {
	for _, r := range c.Roles {
		if r == role {
			return true
		}
	}
	return false
}

// Validate reports every mistake at once. It is about the configuration with its defaults filled in.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(subject.ValidToken(c.Worker), "worker: %q is not a name: 1 to 64 of A-Z a-z 0-9 _ -", c.Worker)
	errs = append(errs, c.offered()...)
	for _, r := range c.Roles {
		check(r == RoleScheduler || r == RoleWorker, "roles: %q is neither %s nor %s", r, RoleScheduler, RoleWorker)
	}
	if c.has(RoleWorker) {
		check(c.DriverName == DriverGVisor || c.DriverName == DriverKube, "driver: %q is neither %s nor %s", c.DriverName, DriverGVisor, DriverKube)
		check(c.DriverName != DriverGVisor || c.StateDir != "", "state directory: must be set for the worker role")
		if c.DriverName == DriverKube {
			errs = append(errs, c.Kube.mistakes()...)
			check(c.Warm.Max == 0, "warm max: the driver %s keeps no sandboxes ready", DriverKube)
		}
		errs = append(errs, c.warm().Validate())
		check(c.SealKeyFile != "", "seal key file: must be set for the worker role")
	}
	check(c.MaxSandboxes > 0 && c.MaxSandboxes <= scheduler.MaxPlaces, "max sandboxes: %d is not between 1 and %d", c.MaxSandboxes, scheduler.MaxPlaces)
	check(c.MaxPerTenant >= 0 && c.MaxPerTenant <= quota.MaxSandboxes, "max sandboxes per tenant: %d is not between 0 and %d", c.MaxPerTenant, quota.MaxSandboxes)
	errs = append(errs, c.Quotas.Validate())
	for name, d := range map[string]time.Duration{
		"start deadline": c.StartDeadline, "keep workspace": c.KeepWorkspace, "orphan grace": c.OrphanGrace, "end timeout": c.EndTimeout,
		"heartbeat interval": c.HeartbeatEvery, "reconcile interval": c.ReconcileEvery, "sample interval": c.SampleEvery,
		"sweep interval": c.SweepEvery, "runtime": c.Runtime,
	} {
		check(d > 0, "%s: %s is not positive", name, d)
	}
	check(c.HeartbeatEvery <= 10*time.Second, "heartbeat interval: %s is over 10 s, at which a worker counts as gone", c.HeartbeatEvery)
	check(c.Lanes > 0 && c.Lanes <= maxLanes, "lanes: %d is not between 1 and %d", c.Lanes, maxLanes)
	check(c.CPUMillis <= c.MaxCPUMillis, "cpu: the default is over the maximum")
	check(c.MemoryBytes <= c.MaxMemoryBytes, "memory: the default is over the maximum")
	check(c.PIDs <= c.MaxPIDs, "processes: the default is over the maximum")
	check(c.Runtime <= c.MaxRuntime, "runtime: the default is over the maximum")
	check(c.WorkspaceBytes <= c.MaxWorkspaceBytes && c.WorkspaceBytes >= minWorkspaceBytes, "workspace: the default is not between 16 MiB and the maximum")
	check(c.MaxRuntime < math.MaxInt64/2, "runtime: the maximum is too long")
	return errors.Join(errs...)
}

// maxWorkerLabels bounds what every heartbeat carries.
const maxWorkerLabels = 32

// offered are the mistakes in what creates may ask a worker for.
func (c Config) offered() (errs []error) {
	printable := func(s string, most int) bool {
		return len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
	}
	for name, text := range map[string]string{"region": c.Region, "provider": c.Provider} {
		if !printable(text, 64) {
			errs = append(errs, fmt.Errorf("%s: %.80q is not at most 64 printable ASCII characters", name, text))
		}
	}
	if len(c.Labels) > maxWorkerLabels {
		errs = append(errs, fmt.Errorf("labels: %d are more than %d", len(c.Labels), maxWorkerLabels))
	}
	for k, v := range c.Labels {
		if k == "" || !printable(k, 63) || !printable(v, 128) {
			errs = append(errs, fmt.Errorf("labels: %.80q is not a name of 1 to 63 and a value of at most 128 printable ASCII characters", k+"="+v))
		}
	}
	for _, t := range c.Tenants {
		if !subject.ValidTenant(t) {
			errs = append(errs, fmt.Errorf("tenants: %.80q is not the id of a tenant: 1 to 64 of A-Z a-z 0-9 _ -", t))
		}
	}
	return errs
}

func (c Config) quotas() tenant.Quotas {
	if c.MaxPerTenant == 0 {
		return c.Quotas
	}
	return c.Quotas.Over(tenant.Quotas{tenant.Sandboxes: uint64(c.MaxPerTenant)}) //nolint:gosec // checked to be positive
}

func (c Config) limits() scheduler.Limits {
	return scheduler.Limits{
		Default: &eventsv1.Limits{
			CpuMillis: c.CPUMillis, MemoryBytes: c.MemoryBytes, Pids: c.PIDs, MaxRuntimeMs: uint64(c.Runtime.Milliseconds()), //nolint:gosec // checked to be positive
		},
		Max: &eventsv1.Limits{
			CpuMillis: c.MaxCPUMillis, MemoryBytes: c.MaxMemoryBytes, Pids: c.MaxPIDs, MaxRuntimeMs: uint64(c.MaxRuntime.Milliseconds()), //nolint:gosec // checked to be positive
		},
		WorkspaceBytes: c.WorkspaceBytes, MaxWorkspaceBytes: c.MaxWorkspaceBytes, MinWorkspaceBytes: minWorkspaceBytes,
		MountPath: c.MountPath,
	}
}
