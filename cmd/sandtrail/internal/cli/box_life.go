package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// createNamed is `sandtrail create NAME`.
func (c *Create) createNamed(e *Env) error {
	for flag, given := range map[string]bool{
		"--session": c.Session != "", "--workspace": c.Workspace != "", "--mount-path": c.MountPath != "", "--pids": c.Pids != 0, "--wait": c.Wait,
	} {
		if given {
			return usagef("%s is for sandboxes without a name", flag)
		}
	}
	body := map[string]any{"name": c.Name, "region": c.Region, "provider_type": c.Provider, "instance_type": c.InstanceType, "async": true}
	env, err := environment(c.Env)
	if err != nil {
		return err
	}
	if body["labels"], err = labels(c.Label); err != nil {
		return err
	}
	wanted, err := pairs("--worker-label", c.WorkerLabel, func(k string) (string, error) {
		return "", usagef("--worker-label %s has no value: give NAME=VALUE", k)
	})
	if err != nil {
		return err
	}
	if wanted != nil {
		body["worker_labels"] = wanted
	}
	body["env"] = env
	if c.Image != defaultImage {
		body["image_id"] = c.Image
	}
	if c.CPU != "" {
		millis, err := cpu(c.CPU)
		if err != nil {
			return err
		}
		body["cpu_cores"] = float64(millis) / 1000
	}
	if c.Memory != "" {
		if body["memory_mb"], err = mebibytes(c.Memory); err != nil {
			return err
		}
	}
	if life := max(time.Duration(c.TTL)*time.Second, c.MaxRuntime); life != 0 {
		body["ttl_seconds"] = int64(life / time.Second)
	}
	if c.IdleTimeout != 0 {
		body["idle_timeout_seconds"] = int64(math.Ceil(c.IdleTimeout.Seconds()))
	}
	if len(c.Egress) > 0 {
		if body["egress"], err = egress(c.Egress); err != nil {
			return err
		}
	}
	ctx, api, done, err := c.remote().connect(e, c.Timeout)
	if err != nil {
		return err
	}
	defer done()
	var made struct {
		JobID   string          `json:"job_id"`
		Status  string          `json:"status"`
		Sandbox json.RawMessage `json:"sandbox"`
	}
	path := "/api/v1/sandboxes"
	if err := api.JSON(ctx, http.MethodPost, path, nil, body, &made); err != nil {
		return err
	}
	if c.NoWait {
		if c.json() {
			return render.Value(e.Stdout, made)
		}
		_, err := fmt.Fprintf(e.Stdout, "%s  job %s %s\n", c.Name, made.JobID, made.Status)
		return err
	}
	record, err := awaitRunning(ctx, api, c.Name)
	if c.json() && record != nil {
		if werr := render.Value(e.Stdout, record); werr != nil {
			return werr
		}
	}
	if err == nil && !c.json() {
		_, err = fmt.Fprintf(e.Stdout, "%s  running\n", c.Name)
	}
	return err
}

// remote are the flags of a create as those of a named sandbox's.
func (c *Create) remote() *Remote {
	return &Remote{APIURL: c.APIURL, APIKeyFile: c.APIKeyFile, Tenant: c.Tenant, Plaintext: c.Plaintext}
}

// mebibytes reads a size; a number alone counts MiB.
func mebibytes(s string) (uint64, error) {
	if strings.Trim(s, "0123456789") == "" {
		s += "Mi"
	}
	n, err := memory(s)
	if err != nil {
		return 0, err
	}
	return (n + 1<<20 - 1) >> 20, nil
}

// awaitRunning asks until a sandbox is up or never will be. It returns the last answer, also beside an error.
func awaitRunning(ctx context.Context, api *named.Client, name string) (map[string]any, error) {
	for pause := firstPoll; ; pause = min(2*pause, maxPoll) {
		record := map[string]any{}
		if err := api.JSON(ctx, http.MethodGet, named.Box(name), nil, nil, &record); err != nil {
			return nil, err
		}
		switch state := text(record, "state"); state {
		case "RUNNING":
			return record, nil
		case "PENDING", "STARTING":
		default:
			return record, fault.Newf(fault.FailedPrecondition, fault.Reason(first(text(record, "reason"), string(fault.ReasonSandboxFailed))),
				"sandbox %s is %s: %s", name, state, text(record, "error_message"))
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return record, context.Cause(ctx)
		}
	}
}

// List is `sandtrail list`.
type List struct {
	Remote
	Format
	Label []string `short:"l" sep:"none" placeholder:"K=V" help:"Only those with this label."`
	State []string `placeholder:"STATE" help:"Only those in this state; TERMINATED shows what is gone."`
}

// Run lists sandboxes by name.
func (l *List) Run(e *Env) error {
	query := url.Values{"label": l.Label}
	for _, s := range l.State {
		query.Add("state", strings.ToUpper(s))
	}
	return l.listed(e, &l.Format, named.Request{Method: http.MethodGet, Path: "/api/v1/sandboxes", Query: query}, "sandboxes",
		[]string{"NAME", "STATE", "WORKER", "REGION", "IMAGE", "CREATED"}, columns("name", "state", "poder_id", "region", "image_id", "created_at"))
}

// Get is `sandtrail get`.
type Get struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run shows a sandbox.
func (g *Get) Run(e *Env) error {
	return g.shown(e, &g.Format, named.Box(g.Name), []string{
		"name", "id", "state", "error_message", "poder_id", "placement_reasons", "region", "provider_type", "instance_type", "image_id", "ip", "arch", "os", "os_version", "owner",
		"ttl_seconds", "idle_timeout_seconds", "expires_at", "created_at", "last_activity", "labels", "egress",
	})
}

// Delete is `sandtrail delete`.
type Delete struct {
	Remote
	Names   []string      `arg:"" name:"name" complete:"sandbox" help:"The sandboxes' names."`
	Timeout time.Duration `default:"5m" help:"Give up after this long."`
}

// Run deletes sandboxes one after the other. Failures of some do not keep the others; the exit code is that of the first.
func (d *Delete) Run(e *Env) error {
	return d.ended(e, d.Timeout, d.Names, func(name string) string { return named.Box(name) }, "TERMINATED", "deleted")
}

func (r *Remote) each(e *Env, timeout time.Duration, names []string, do func(context.Context, *named.Client, string) error) error {
	ctx, api, done, err := r.connect(e, timeout)
	if err != nil {
		return err
	}
	defer done()
	code := ExitOK
	for _, name := range names {
		if err := do(ctx, api, name); err != nil {
			if c := report(e.Stderr, aboutError{name, err}, false); code == ExitOK {
				code = c
			}
		}
	}
	if code != ExitOK {
		return exitError(code)
	}
	return nil
}

// StopBox is `sandtrail stop`.
type StopBox struct {
	Remote
	Names   []string      `arg:"" name:"name" complete:"sandbox" help:"The sandboxes' names."`
	Timeout time.Duration `default:"5m" help:"Give up after this long."`
}

// Run ends their processes and keeps their files.
func (s *StopBox) Run(e *Env) error { return s.turn(e, s.Timeout, s.Names, "stop", "stopped") }

// StartBox is `sandtrail start`.
type StartBox struct {
	Remote
	Names   []string      `arg:"" name:"name" complete:"sandbox" help:"The sandboxes' names."`
	Timeout time.Duration `default:"5m" help:"Give up after this long."`
}

// Run brings stopped sandboxes back.
func (s *StartBox) Run(e *Env) error { return s.turn(e, s.Timeout, s.Names, "start", "running") }

func (r *Remote) turn(e *Env, timeout time.Duration, names []string, how, said string) error {
	return r.each(e, timeout, names, func(ctx context.Context, api *named.Client, name string) error {
		box := map[string]any{}
		if err := api.JSON(ctx, http.MethodPost, named.Box(name, how), nil, nil, &box); err != nil {
			return err
		}
		said := said
		if text(box, "state") == "STOPPING" {
			said = "is being stopped"
		}
		_, err := fmt.Fprintf(e.Stdout, "%s  %s\n", name, said)
		return err
	})
}

// Job is `sandtrail job`.
type Job struct {
	Get JobGet `cmd:"" help:"Show how far an order is."`
}

// JobGet is `sandtrail job get`.
type JobGet struct {
	Remote
	Format
	ID string `arg:"" help:"The job's id."`
}

// Run shows a job.
func (j *JobGet) Run(e *Env) error {
	return j.shown(e, &j.Format, "/api/v1/jobs/"+url.PathEscape(j.ID), []string{
		"id", "type", "status", "sandbox_name", "error_message", "result", "created_at", "updated_at",
	})
}

// Poder is `sandtrail poder`.
type Poder struct {
	List   PoderList   `cmd:"" help:"List the workers."`
	Get    PoderGet    `cmd:"" help:"Show a worker."`
	Delete PoderDelete `cmd:"" help:"Take workers from the list that are silent."`
}

// PoderList is `sandtrail poder list`.
type PoderList struct {
	Remote
	Format
}

// Run lists workers.
func (p *PoderList) Run(e *Env) error {
	header := []string{"ID", "STATE", "REGION", "DRIVER", "SANDBOXES", "LAST HEARTBEAT"}
	return p.listed(e, &p.Format, named.Request{Method: http.MethodGet, Path: "/api/v1/poders"}, "poders", header, func(w map[string]any) []string {
		res, _ := w["resources"].(map[string]any)
		use, _ := w["usage"].(map[string]any)
		return []string{
			text(w, "id"), text(w, "state"), text(w, "region"), text(res, "driver"), text(use, "containers") + " of " + text(res, "max_containers"),
			text(w, "last_heartbeat"),
		}
	})
}

// PoderGet is `sandtrail poder get`.
type PoderGet struct {
	Remote
	Format
	ID string `arg:"" help:"The worker's name."`
}

// Run shows a worker.
func (p *PoderGet) Run(e *Env) error {
	return p.shown(e, &p.Format, "/api/v1/poders/"+url.PathEscape(p.ID), []string{
		"id", "state", "cordoned", "region", "provider_type", "labels", "resources", "usage", "last_heartbeat",
	})
}

// Health is `sandtrail health`.
type Health struct {
	Remote
	Format
}

// Run asks a server whether it is well.
func (h *Health) Run(e *Env) error {
	return h.shown(e, &h.Format, "/health", []string{"status", "version"})
}
