// Package rig runs the whole of Sandtrail as separate processes under a supervisor, with a proxy on every connection and a disk of its own
// for every store, so that any part can be made to fail by itself.
package rig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/skew"
)

// Form is how Sandtrail runs.
type Form string

// Forms.
const (
	// Services: each service is a process, against NATS servers and a ClickHouse that are processes too.
	Services Form = "services"
	// AllInOne: `sandtrail up`, one process with all services and an embedded NATS server, and ClickHouse as its child.
	AllInOne Form = "up"
)

// Names of processes.
const (
	ClickHouse = "clickhouse"
	UpProcess  = "up"
)

// serviceNames in the order in which they start.
var serviceNames = []string{"lifecycle", "exec", "usage", "gc", "gateway"}

// Options of a Rig.
type Options struct {
	// Bin is the directory of Sandtrail's binaries, see Build.
	Bin string
	// Clocks gives each program of Sandtrail, and each NATS server, a wall clock of its own, see Process.Clock.
	Clocks bool
	// State is a directory that does not exist yet; its path is short, because sockets lie below it.
	State string
	Form  Form
	// Replicas of streams, and NATS servers: 1 or 3. `up` has one.
	Replicas int
	// Clients is how many links to the gateway there are.
	Clients int
	// MaxSandboxes on the host, and of one tenant; `up` has its own defaults.
	MaxSandboxes, MaxPerTenant int
	// Sandboxes is how many are made in all: their workspaces stay until the end, as evidence. 0 is 2,000.
	Sandboxes int
	// Say gets a line for each step; may be nil.
	Say func(format string, args ...any)
}

// Rig is a running Sandtrail.
type Rig struct {
	Options
	// GRPC and HTTP are the gateway's own addresses, NATS the servers' own URLs, ClickHouseURL that of HTTP queries: no proxy lies before them.
	GRPC, HTTP, NATS, ClickHouseURL string
	// ClickHousePassword is that of the Administrator; empty where ClickHouse is a child of `up`, which tells nobody.
	ClickHousePassword string
	// Metrics are the URLs of metrics, by process; what has none is missing.
	Metrics map[string]string

	processes []*Process
	proxies   *proxies
	disks     []*Disk
}

// Sizes of the disks, in bytes. They are in memory, and take what is stored on them. An unused workspace takes 2.7 MB, and a worker
// keeps 1 GiB free.
const (
	storeBytes     = 4 << 30
	spoolBytes     = 2 << 30
	workspaceBytes = 2 << 30
	eachWorkspace  = 3 << 20
)

// Names of the disks.
const (
	StoreDisk     = "store"
	SpoolDisk     = "spool"
	WorkspaceDisk = "workspace"
)

// Start prepares the state and starts everything; it returns once the gateway lets callers in. On an error nothing is left running.
func Start(ctx context.Context, o Options) (_ *Rig, err error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Sandboxes == 0 {
		o.Sandboxes = 2000
	}
	r := &Rig{Options: o, proxies: newProxies(), Metrics: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	if err := os.Mkdir(o.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	o.Say("preparing the state in %s", o.State)
	prepare := exec.CommandContext(ctx, filepath.Join(o.Bin, "sandtrail"), "up", "--prepare-only", "--state", o.State)
	if out, err := prepare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("sandtrail up --prepare-only: %w\n%s", err, out)
	}
	for _, d := range []struct {
		name, dir string
		bytes     uint64
	}{{StoreDisk, "nats", storeBytes}, {SpoolDisk, "sandboxes", spoolBytes}, {WorkspaceDisk, "workspaces", workspaceBytes + eachWorkspace*uint64(o.Sandboxes)}} {
		disk, err := mountDisk(d.name, filepath.Join(o.State, d.dir), d.bytes)
		if err != nil {
			return nil, err
		}
		r.disks = append(r.disks, disk)
	}
	for _, at := range []*string{&r.GRPC, &r.HTTP} {
		if *at, err = freePort(); err != nil {
			return nil, err
		}
	}
	for i := range o.Clients {
		if _, err := r.proxies.open(fmt.Sprintf("client%d", i), "gateway", r.GRPC); err != nil {
			return nil, err
		}
	}
	start := r.startServices
	if o.Form == AllInOne {
		start = r.startUp
	}
	if err := start(ctx); err != nil {
		return nil, err
	}
	o.Say("waiting for the gateway")
	ready := strings.TrimSuffix(cmp.Or(r.Metrics["gateway"], r.Metrics[UpProcess]), "metrics") + "readyz"
	return r, r.await(ctx, "the gateway", func(ctx context.Context) error { return answers(ctx, ready) })
}

func (r *Rig) spawn(name string, command func() *exec.Cmd) error {
	var clock *skew.Clock
	if r.Clocks && name != ClickHouse {
		clock = new(skew.Clock)
	}
	p, err := supervise(name, r.LogFile(name), clock, command)
	if err == nil {
		r.processes = append(r.processes, p)
	}
	return err
}

// LogFile is where a process's output goes.
func (r *Rig) LogFile(name string) string { return filepath.Join(r.State, name+".log") }

func (r *Rig) startUp(ctx context.Context) error {
	nats, err := freePort()
	if err != nil {
		return err
	}
	r.NATS = "nats://" + nats
	r.Metrics[UpProcess] = "http://" + r.HTTP + "/metrics"
	args := []string{"up", "--state", r.State, "--grpc", r.GRPC, "--http", r.HTTP, "--nats", nats}
	if err := r.spawn(UpProcess, func() *exec.Cmd { return exec.Command(filepath.Join(r.Bin, "sandtrail"), args...) }); err != nil {
		return err
	}
	return r.Find(ctx)
}

// Find learns where ClickHouse listens: `up` may take another port each time that it starts.
func (r *Rig) Find(ctx context.Context) error {
	if r.Form != AllInOne {
		return nil
	}
	return r.await(ctx, "the addresses", func(context.Context) error {
		var a struct {
			PID            int
			ClickHouseHTTP string `json:"clickhouse_http"`
		}
		data, err := os.ReadFile(filepath.Join(r.State, "up.json"))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &a); err != nil {
			return err
		}
		if a.PID != r.Process(UpProcess).PID() {
			return errors.New("they are an earlier one's")
		}
		r.ClickHouseURL = a.ClickHouseHTTP
		return nil
	})
}

func (r *Rig) startServices(ctx context.Context) error {
	nodes, err := r.startNodes()
	if err != nil {
		return err
	}
	native, err := r.startClickHouse()
	if err != nil {
		return err
	}
	r.Say("waiting for ClickHouse")
	if err := r.await(ctx, ClickHouse, func(ctx context.Context) error { return answers(ctx, r.ClickHouseURL+"/ping") }); err != nil {
		return err
	}
	key := filepath.Join(r.State, "seal.key")
	flags := map[string][]string{
		"gateway": {"--grpc", r.GRPC, "--http", r.HTTP, "--seal-key-file", key},
		"lifecycle": {
			"--state", r.State, "--seal-key-file", key, "--toolbox", filepath.Join(r.Bin, "toolbox"), "--orphan-grace", orphanGrace.String(),
			fmt.Sprintf("--max-sandboxes=%d", r.MaxSandboxes), fmt.Sprintf("--max-per-tenant=%d", r.MaxPerTenant),
		},
		"exec":  {"--state", r.State, "--seal-key-file", key},
		"usage": {"--dir", filepath.Join(r.State, "usage"), "--clickhouse", native},
		"gc":    {"--every", "10s"},
	}
	for _, name := range serviceNames {
		var urls []string
		for i, n := range nodes {
			l, err := r.proxies.open(name, fmt.Sprintf("nats%d", i), n)
			if err != nil {
				return err
			}
			urls = append(urls, "nats://"+l.Addr())
		}
		ops, err := freePort()
		if err != nil {
			return err
		}
		r.Metrics[name] = "http://" + ops + "/metrics"
		args := slices.Concat(flags[name], []string{"--nats", strings.Join(urls, ","), "--log-level", "warn", fmt.Sprintf("--replicas=%d", r.Replicas), "--ops", ops})
		if err := r.spawn(name, func() *exec.Cmd { return exec.Command(filepath.Join(r.Bin, "sandtrail-"+name), args...) }); err != nil {
			return err
		}
	}
	return nil
}

// orphanGrace leaves room, within the 30 s in which log and host must agree, for a sweep behind it.
const orphanGrace = 10 * time.Second

// startNodes starts the NATS servers and returns their own addresses.
func (r *Rig) startNodes() ([]string, error) {
	clients, routes := make([]string, r.Replicas), make([]string, r.Replicas)
	var urls []string
	for i := range r.Replicas {
		var err error
		if clients[i], err = freePort(); err != nil {
			return nil, err
		}
		if routes[i], err = freePort(); err != nil {
			return nil, err
		}
		urls = append(urls, "nats://"+clients[i])
	}
	r.NATS = strings.Join(urls, ",")
	for i := range r.Replicas {
		ops, err := freePort()
		if err != nil {
			return nil, err
		}
		n := node{Name: fmt.Sprintf("nats%d", i), Dir: filepath.Join(r.State, "nats"), Ops: ops}
		r.Metrics[n.Name] = "http://" + ops + "/metrics"
		if n.Port, err = portOf(clients[i]); err != nil {
			return nil, err
		}
		if r.Replicas > 1 {
			n.Dir = filepath.Join(n.Dir, n.Name)
			if n.Cluster, err = r.cluster(i, routes); err != nil {
				return nil, err
			}
		}
		command, err := n.command()
		if err != nil {
			return nil, err
		}
		if err := r.spawn(n.Name, command); err != nil {
			return nil, err
		}
	}
	return clients, nil
}

// nowhere is an address at which nobody listens: what servers tell each other about a third leads nowhere, and only the links remain.
const nowhere = "127.0.0.1:1"

func (r *Rig) cluster(i int, routes []string) (*natsserver.Cluster, error) {
	c := &natsserver.Cluster{Name: "chaos", Advertise: nowhere, NoAdvertise: true}
	var err error
	if c.Port, err = portOf(routes[i]); err != nil {
		return nil, err
	}
	for j, at := range routes {
		if j == i {
			continue
		}
		l, err := r.proxies.open(fmt.Sprintf("nats%d", i), fmt.Sprintf("nats%d", j), at)
		if err != nil {
			return nil, err
		}
		c.Routes = append(c.Routes, "nats://"+l.Addr())
	}
	return c, nil
}

// startClickHouse returns the URL that the usage service is given.
func (r *Rig) startClickHouse() (string, error) {
	library, err := findLibrary()
	if err != nil {
		return "", err
	}
	native, err := freePort()
	if err != nil {
		return "", err
	}
	http, err := freePort()
	if err != nil {
		return "", err
	}
	e, err := newEngine(filepath.Join(r.State, "clickhouse"), library, native, http)
	if err != nil {
		return "", err
	}
	r.ClickHouseURL, r.ClickHousePassword = "http://"+http, enginePassword
	command, err := e.command(filepath.Join(r.Bin, "sandtrail-usage"))
	if err != nil {
		return "", err
	}
	link, err := r.proxies.open("usage", ClickHouse, native)
	if err != nil {
		return "", err
	}
	return e.url(link.Addr()), r.spawn(ClickHouse, command)
}

// startPatience bounds the wait for one part.
const startPatience = 2 * time.Minute

func (r *Rig) await(ctx context.Context, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", what, err)
		}
	}
}

// Processes are all that the supervisor runs.
func (r *Rig) Processes() []*Process { return slices.Clone(r.processes) }

// Process finds one by its name; nil where the form has none of it.
func (r *Rig) Process(name string) *Process {
	for _, p := range r.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Nodes are the NATS servers that are processes.
func (r *Rig) Nodes() []*Process {
	return slices.DeleteFunc(r.Processes(), func(p *Process) bool { return !strings.HasPrefix(p.Name, "nats") })
}

// Links are those for which is holds.
func (r *Rig) Links(is func(*Link) bool) []*Link {
	return slices.DeleteFunc(slices.Clone(r.proxies.all), func(l *Link) bool { return !is(l) })
}

// ClientAddr is where the client of a number reaches the gateway.
func (r *Rig) ClientAddr(client int) string {
	name := fmt.Sprintf("client%d", client)
	return r.Links(func(l *Link) bool { return l.From == name })[0].Addr()
}

// Disk finds a disk by its name.
func (r *Rig) Disk(name string) *Disk {
	for _, d := range r.disks {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// Stop ends every process, what is left of sandboxes too, and gives back the disks. The state directory stays, with the logs.
func (r *Rig) Stop() error {
	for _, p := range slices.Backward(r.processes) {
		p.Stop()
	}
	for range 100 {
		members := r.Members()
		if len(members) == 0 {
			break
		}
		for _, m := range members {
			_ = syscall.Kill(m.PID, syscall.SIGKILL)
		}
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
	}
	r.proxies.close()
	var errs []error
	for _, d := range r.disks {
		errs = append(errs, d.unmount())
	}
	return errors.Join(errs...)
}

// Leader is the NATS server that leads a stream.
func (r *Rig) Leader(ctx context.Context, stream string) (*Process, error) {
	nc, err := nats.Connect(r.NATS, nats.Timeout(2*time.Second))
	if err != nil {
		return nil, fmt.Errorf("find the leader of %s: %w", stream, err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("find the leader of %s: %w", stream, err)
	}
	info := s.CachedInfo()
	if info.Cluster == nil || r.Process(info.Cluster.Leader) == nil {
		return nil, fmt.Errorf("stream %s has no leader now", stream)
	}
	return r.Process(info.Cluster.Leader), nil
}

// Behind names the replicas of streams that do not have everything or cannot be reached, and the streams without a leader. None: all servers
// are whole.
func (r *Rig) Behind(ctx context.Context) ([]string, error) {
	nc, err := nats.Connect(r.NATS, nats.Timeout(2*time.Second))
	if err != nil {
		return nil, fmt.Errorf("look at the replicas: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	var behind []string
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		if info.Cluster == nil || info.Cluster.Leader == "" {
			behind = append(behind, info.Config.Name)
			continue
		}
		for _, p := range info.Cluster.Replicas {
			if !p.Current || p.Offline {
				behind = append(behind, info.Config.Name+" on "+p.Name)
			}
		}
	}
	if err := streams.Err(); err != nil {
		return nil, fmt.Errorf("look at the replicas: %w", err)
	}
	return behind, nil
}
