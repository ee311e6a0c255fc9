package sandboxapi

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// States of a worker in the words of the published API.
const (
	online  = "ONLINE"
	offline = "OFFLINE"
)

// poder is a worker in the words of the published API.
type poder struct {
	ID            string    `json:"id"`
	Region        string    `json:"region"`
	ProviderType  string    `json:"provider_type"`
	State         string    `json:"state"`
	Resources     resources `json:"resources"`
	Usage         inUse     `json:"usage"`
	LastHeartbeat time.Time `json:"last_heartbeat"`
	// Labels are what its operator says of it.
	Labels map[string]string `json:"labels,omitempty"`
	// Cordoned is why no new sandbox comes to it.
	Cordoned string `json:"cordoned,omitempty"`
}

type resources struct {
	CPUCores      float64 `json:"cpu_cores"`
	MemoryBytes   uint64  `json:"memory_bytes"`
	MaxContainers uint32  `json:"max_containers"`
	Arch          string  `json:"arch"`
	OS            string  `json:"os"`
	// Driver is how it makes sandboxes: gvisor or kube.
	Driver string `json:"driver"`
}

// inUse is what a worker's sandboxes take of it. Its cpu and memory are not reported yet: 0.
type inUse struct {
	Containers  uint32  `json:"containers"`
	CPUUsage    float64 `json:"cpu_usage"`
	MemoryUsage float64 `json:"memory_usage"`
}

func poderOf(w *commandsv1.WorkerStatus, now time.Time) poder {
	p := poder{
		ID: w.GetWorker(), Region: orElse(w.GetRegion(), local), ProviderType: orElse(w.GetProvider(), local), State: online, Labels: w.GetLabels(), Cordoned: w.GetCordoned(),
		Resources: resources{
			CPUCores: float64(w.GetCpuMillis()) / 1000, MemoryBytes: w.GetMemoryBytes(), MaxContainers: w.GetMaxSandboxes(),
			Arch: "amd64", OS: "linux", Driver: w.GetDriver(),
		},
		Usage: inUse{Containers: w.GetSandboxes()}, LastHeartbeat: w.GetTime().AsTime(),
	}
	if now.Sub(p.LastHeartbeat) > usecase.Silence {
		p.State = offline
	}
	return p
}

// poders lists the workers that were heard of within the last minute.
func (c *call) poders() error {
	all, err := c.use.Workers(c.ctx, c.p)
	if err != nil {
		return err
	}
	now, err := c.use.Now(c.ctx)
	if err != nil {
		return err
	}
	out := struct {
		Poders []poder `json:"poders"`
	}{[]poder{}}
	for _, w := range all {
		out.Poders = append(out.Poders, poderOf(w, now))
	}
	slices.SortFunc(out.Poders, func(a, b poder) int { return strings.Compare(a.ID, b.ID) })
	return c.answer(http.StatusOK, out)
}

// oneWorker is that of the path.
func (c *call) oneWorker() (poder, error) {
	all, err := c.use.Workers(c.ctx, c.p)
	if err != nil {
		return poder{}, err
	}
	id := c.r.PathValue("id")
	i := slices.IndexFunc(all, func(w *commandsv1.WorkerStatus) bool { return w.GetWorker() == id })
	if i < 0 {
		return poder{}, fault.Newf(fault.NotFound, fault.ReasonWorkerNotFound, "there is no worker %.64q", id)
	}
	now, err := c.use.Now(c.ctx)
	return poderOf(all[i], now), err
}

func (c *call) poder() error {
	p, err := c.oneWorker()
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, p)
}

// removePoder takes a worker that is silent from the list, and answers it as it was. Nothing becomes of its sandboxes; with its next heartbeat it
// is listed again.
func (c *call) removePoder() error {
	p, err := c.oneWorker()
	if err != nil {
		return err
	}
	if p.State == online {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState,
			"worker %s is %s: only one that is %s can be removed; end its process first, and its sandboxes before where they are not to come back", p.ID, online, offline)
	}
	if err := c.use.ForgetWorker(c.ctx, c.p, p.ID, p.LastHeartbeat); err != nil {
		return err
	}
	return c.answer(http.StatusOK, p)
}
