package stack

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Services are the names of the processes that Processes starts.
var Services = []string{"lifecycle", "exec", "usage", "gc", "gateway"}

// Extra are further flags of services, by service.
type Extra map[string][]string

// Processes starts one NATS server and each service as its own process.
func Processes(t *testing.T, extra ...Extra) *Stack {
	t.Helper()
	return ProcessesOf(t, Bin(t), extra...)
}

// ProcessesOf is Processes with the binaries in a directory; what they share on disk is prepared by those of this tree.
func ProcessesOf(t *testing.T, bin string, extra ...Extra) *Stack {
	t.Helper()
	return processes(t, bin, nil, extra...)
}

func processes(t *testing.T, bin string, g *guard, extra ...Extra) *Stack {
	t.Helper()
	s := &Stack{t: t, State: StateDir(t), procs: map[string]*process{}}
	o := natsserver.Options{Dir: filepath.Join(s.State, "nats"), Port: -1}
	if g != nil {
		o.Users, o.Log, s.proof = g.users, g.log, g.all
	}
	server, err := natsserver.Start(o)
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	s.NATS, s.GRPC, s.HTTP = server.URL(), freePort(t), freePort(t)
	click := freePort(t)
	s.ClickHouse = "http://" + click
	s.connect() // closed after the cleanup below has destroyed what is left
	key := filepath.Join(s.State, "seal.key")
	prepare := exec.Command(filepath.Join(Bin(t), "sandtrail"), "up", "--prepare-only", "--state", s.State)
	out, err := prepare.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, clickPort, err := net.SplitHostPort(click)
	require.NoError(t, err)
	flags := map[string][]string{
		"gateway":   {"--grpc", s.GRPC, "--http", s.HTTP, "--seal-key-file", key},
		"lifecycle": {"--state", s.State, "--seal-key-file", key},
		"exec":      {"--state", s.State, "--seal-key-file", key},
		"usage":     {"--dir", filepath.Join(s.State, "clickhouse"), "--clickhouse-port=-1", "--clickhouse-http-port", clickPort},
		"gc":        {},
	}
	services := Services
	if g != nil {
		g.provision(t, s)
		services = append(slices.Clone(services), "scheduler")
		extra = append(extra, g.flags())
	}
	for _, name := range services {
		args := slices.Concat(flags[name], []string{"--nats", s.NATS, "--log-level", "warn"})
		for _, e := range extra {
			args = append(args, e[name]...)
		}
		s.spawn(name, program(bin, name), args...)
	}
	t.Cleanup(func() {
		s.destroyAll()
		for name := range s.procs {
			s.Interrupt(name)
		}
	})
	s.wait("gateway", func() error { return isReady(s.HTTP) })
	s.wait("usage", s.clickHouseAnswers)
	return s
}

// Respawn starts a service that was ended again, with its flags and those given, and returns once its listeners answer.
func (s *Stack) Respawn(name string, flags ...string) {
	s.t.Helper()
	old := s.procs[name]
	<-old.done
	s.spawn(name, old.cmd.Path, append(slices.Clone(old.args), flags...)...)
	s.answers(name)
}

// Second starts one more process of a service that needs no address, under the name NAME-2.
func (s *Stack) Second(name string, flags ...string) {
	s.t.Helper()
	s.spawn(name+"-2", s.procs[name].cmd.Path, append([]string{"--nats", s.NATS, "--log-level", "warn"}, flags...)...)
}

// Swap ends a service as a deployment does and starts the one of another directory of binaries with its flags; lifecycle takes
// the toolbox beside it for the keepers that it starts from now on. It returns once its listeners answer.
func (s *Stack) Swap(name, bin string) {
	s.t.Helper()
	args := s.procs[name].args
	s.Interrupt(name)
	s.spawn(name, program(bin, name), args...)
	s.answers(name)
}

func program(bin, service string) string {
	if service == "scheduler" {
		service = "lifecycle"
	}
	return filepath.Join(bin, "sandtrail-"+service)
}

// answers waits for the listeners of a service.
func (s *Stack) answers(name string) {
	s.t.Helper()
	switch name {
	case "gateway":
		s.wait(name, func() error { return isReady(s.HTTP) })
	case "usage":
		s.wait(name, s.clickHouseAnswers)
	}
}

func (s *Stack) clickHouseAnswers() error {
	res, err := http.Get(s.ClickHouse + "/ping")
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func (s *Stack) destroyAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := s.API.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
	if err != nil {
		s.t.Errorf("list what is left: %v", err)
		return
	}
	for _, b := range list.GetSandboxes() {
		if b.GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED {
			continue
		}
		if _, err := s.API.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: b.GetSandboxId()}); err != nil {
			s.t.Errorf("destroy what is left: %v", err)
		}
	}
}
