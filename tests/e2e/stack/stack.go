// Package stack starts Sandtrail the two ways people run it, as real processes on this host: `sandtrail up`, and each service by
// itself against one NATS server.
package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// ready bounds a start: a machine on which nothing is prepared yet builds gVisor first.
const ready = 15 * time.Minute

// Image is the one that is built on this host.
const Image = "ghcr.io/paper-board/sandbox-python:v0.1.0"

// Stack is a running Sandtrail.
type Stack struct {
	State string
	// Key is the API key of every call that brings none of its own; empty without.
	Key string
	// Addresses of what listens.
	GRPC, HTTP, NATS, ClickHouse string
	API                          computev1.ComputeServiceClient
	JS                           jetstream.JetStream

	t *testing.T
	// proof is how the test's own connection proves who it is.
	proof []nats.Option
	// joiner is the file with the seed of Joiner's nkey; empty where the server lets everybody in.
	joiner string
	procs  map[string]*process
	// start starts the `up` of a directory of binaries; bin is where it was taken from last.
	start func(bin string)
	bin   string
}

type process struct {
	cmd  *exec.Cmd
	args []string
	done chan struct{}
}

var build struct {
	sync.Once
	dir string
	err error
}

// seed is a state in which the image is unpacked.
var seed struct {
	sync.Once
	dir string
	err error
}

// Root is the top of the source tree.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		require.NotEqual(t, "/", dir, "no go.work above the test")
		dir = filepath.Dir(dir)
	}
}

// Bin builds every binary once and returns their directory. SANDTRAIL_BIN names a directory of binaries that are there already.
func Bin(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("SANDTRAIL_BIN"); dir != "" {
		return dir
	}
	build.Do(func() {
		root := Root(t)
		build.dir = filepath.Join(root, "bin")
		cmd := exec.Command("make", "-s", "build")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("make build: %w\n%s", err, out)
		}
	})
	require.NoError(t, build.err)
	return build.dir
}

// Up starts `sandtrail up` on a fresh state directory.
func Up(t *testing.T, flags ...string) *Stack {
	t.Helper()
	return UpOf(t, Bin(t), flags...)
}

// UpOf is Up with the binaries in a directory.
func UpOf(t *testing.T, bin string, flags ...string) *Stack {
	t.Helper()
	return UpIn(t, bin, StateDir(t), flags...)
}

// UpIn is UpOf on a state directory that StateDir made.
func UpIn(t *testing.T, bin, state string, flags ...string) *Stack {
	t.Helper()
	s := &Stack{t: t, State: state, procs: map[string]*process{}}
	s.start = func(bin string) {
		args := append([]string{
			"up", "--state", s.State, "--grpc", or(s.GRPC, "127.0.0.1:0"), "--http", or(s.HTTP, "127.0.0.1:0"), "--nats", or(strings.TrimPrefix(s.NATS, "nats://"), "127.0.0.1:0"),
		}, flags...)
		s.spawn("up", filepath.Join(bin, "sandtrail"), args...)
		var a struct {
			PID            int
			GRPC           string
			HTTP           string
			NATS           string
			ClickHouseHTTP string `json:"clickhouse_http"`
		}
		s.wait("up", func() error {
			data, err := os.ReadFile(filepath.Join(s.State, "up.json"))
			if err != nil {
				return err
			}
			if err := json.Unmarshal(data, &a); err != nil {
				return err
			}
			if a.PID != s.procs["up"].cmd.Process.Pid {
				return errors.New("up.json is an earlier one's")
			}
			return isReady(a.HTTP)
		})
		s.GRPC, s.HTTP, s.NATS, s.ClickHouse = a.GRPC, a.HTTP, a.NATS, a.ClickHouseHTTP
	}
	t.Cleanup(func() {
		s.Interrupt("up")
		s.Down()
	})
	s.start(bin)
	s.connect()
	s.bin = bin
	return s
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Prepare builds and unpacks what all tests of a process share, once.
func Prepare(t testing.TB) error {
	t.Helper()
	seed.Do(func() {
		if seed.dir, seed.err = os.MkdirTemp("", "sandtrail-e2e-"); seed.err != nil {
			return
		}
		out, err := exec.Command(filepath.Join(Bin(t), "sandtrail"), "up", "--prepare-only", "--state", seed.dir).CombinedOutput()
		if err != nil {
			seed.err = fmt.Errorf("sandtrail up --prepare-only: %w\n%s", err, out)
		}
	})
	return seed.err
}

// StateDir makes a state directory that has the image unpacked. It is short: the paths below it are long enough.
func StateDir(t *testing.T) string {
	t.Helper()
	require.NoError(t, Prepare(t))
	dir, err := os.MkdirTemp("", "sandtrail-e2e-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	// Links, not copies: what is unpacked is only read.
	out, err := exec.Command("cp", "-al", filepath.Join(seed.dir, "images"), dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// Clean removes what all tests of a process share. Call it after the last one.
func Clean() error { return os.RemoveAll(seed.dir) }

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func isReady(addr string) error {
	res, err := http.Get("http://" + addr + "/readyz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz says %s", res.Status)
	}
	return nil
}

func (s *Stack) spawn(name, path string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(path, args...)
	log, err := os.OpenFile(filepath.Join(s.State, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(s.t, cmd.Start())
	p := &process{cmd: cmd, args: args, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	s.procs[name] = p
}

// wait polls fn until it passes, and fails with the process's log when the process ends first.
func (s *Stack) wait(name string, fn func() error) {
	s.t.Helper()
	deadline := time.After(ready)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fn()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-s.procs[name].done:
			s.t.Fatalf("%s ended: %s\n%s", name, s.procs[name].cmd.ProcessState, s.Log(name))
		case <-deadline:
			s.t.Fatalf("%s is not ready: %v\n%s", name, err, s.Log(name))
		}
	}
}

// Log is what a process has printed.
func (s *Stack) Log(name string) string {
	data, err := os.ReadFile(filepath.Join(s.State, name+".log"))
	require.NoError(s.t, err)
	return string(data)
}

func (s *Stack) connect() {
	s.t.Helper()
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(credential{s}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(20<<20), grpc.WaitForReady(true)))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	s.API = computev1.NewComputeServiceClient(conn)
	nc, err := nats.Connect(s.NATS, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}, s.proof...)...)
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	s.JS, err = jetstream.New(nc)
	require.NoError(s.t, err)
}

// credential puts the key of a stack on calls.
type credential struct{ *Stack }

func (c credential) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if c.Key == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "ApiKey " + c.Key}, nil
}

func (credential) RequireTransportSecurity() bool { return false }

// Kill ends a process with SIGKILL and waits until it is gone.
func (s *Stack) Kill(name string) { s.end(name, syscall.SIGKILL) }

// Interrupt ends a process as Ctrl-C does and waits until it is gone.
func (s *Stack) Interrupt(name string) { s.end(name, syscall.SIGINT) }

func (s *Stack) end(name string, sig syscall.Signal) {
	s.t.Helper()
	p := s.procs[name]
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig) // one that has ended is what is wanted
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		s.t.Errorf("%s did not end within 30 s of %s\n%s", name, sig, s.Log(name))
	}
}

// Restart starts `up` again on the same state and addresses.
func (s *Stack) Restart() {
	s.t.Helper()
	s.start(s.bin)
}

// RestartOf is Restart with the binaries in another directory, from now on.
func (s *Stack) RestartOf(bin string) {
	s.t.Helper()
	s.bin = bin
	s.start(bin)
}

// Down is `sandtrail down`: it ends every sandbox of a state that no `up` serves.
func (s *Stack) Down() {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(Bin(s.t), "sandtrail"), "down", "--state", s.State)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Errorf("sandtrail down: %v\n%s\nup printed:\n%s", err, out, s.Log("up"))
	}
}
