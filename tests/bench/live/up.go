// Package live is what figures are taken of: a real `sandtrail up` on a state directory of its own, and its sandboxes.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandtrail/sandtrail/libs/outputcodec"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Image is the one that sandboxes are made of.
const Image = "ghcr.io/paper-board/sandbox-python:v0.1.0"

// Tenant owns everything that is made.
const Tenant = "bench"

const (
	// startPatience is for a machine on which nothing is prepared yet: gVisor is built then.
	startPatience = 15 * time.Minute
	stopPatience  = 30 * time.Second
)

// Up is a running `sandtrail up`.
type Up struct {
	State string
	// PID of the process that serves; ClickHouse is a child of it and not in its memory.
	PID int
	// ClickHouse is a URL that answers queries by HTTP.
	ClickHouse string
	API        computev1.ComputeServiceClient
	JS         jetstream.JetStream

	bin   string
	flags []string
	cmd   *exec.Cmd
	done  chan struct{}
	conn  *grpc.ClientConn
	nc    *nats.Conn
}

// Start starts bin/sandtrail with further flags and returns when it is ready. Close it.
func Start(ctx context.Context, bin string, flags ...string) (*Up, error) {
	state, err := os.MkdirTemp("", "sandtrail-bench-")
	if err != nil {
		return nil, err
	}
	u := &Up{State: state, bin: filepath.Join(bin, "sandtrail"), flags: flags, done: make(chan struct{})}
	if err := u.start(ctx); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

func (u *Up) start(ctx context.Context) error {
	log, err := os.Create(u.log())
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"up", "--state", u.State, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--nats", "127.0.0.1:0"}
	u.cmd = exec.Command(u.bin, append(args, u.flags...)...)
	u.cmd.Stdout, u.cmd.Stderr = log, log
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := u.cmd.Start(); err != nil {
		u.cmd = nil
		return fmt.Errorf("start sandtrail up: %w", err)
	}
	u.PID = u.cmd.Process.Pid
	go func() { _ = u.cmd.Wait(); close(u.done) }()
	deadline := time.After(startPatience)
	for {
		err := u.connect(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-u.done:
			return fmt.Errorf("sandtrail up ended: %s", u.tail())
		case <-deadline:
			return fmt.Errorf("sandtrail up is not ready: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (u *Up) log() string { return filepath.Join(u.State, "up.log") }

// tail is the end of what it printed.
func (u *Up) tail() string {
	b, _ := os.ReadFile(u.log())
	return string(b[max(0, len(b)-2000):])
}

// connect succeeds once it serves.
func (u *Up) connect(ctx context.Context) error {
	data, err := os.ReadFile(filepath.Join(u.State, "up.json"))
	if err != nil {
		return err
	}
	var a struct {
		GRPC, HTTP, NATS string
		ClickHouseHTTP   string `json:"clickhouse_http"`
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.HTTP+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz says %s", res.Status)
	}
	u.ClickHouse = a.ClickHouseHTTP
	if u.conn, err = grpc.NewClient(a.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(128<<10), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(outputcodec.New()))); err != nil {
		return err
	}
	u.API = computev1.NewComputeServiceClient(u.conn)
	if u.nc, err = nats.Connect(a.NATS); err != nil {
		return err
	}
	u.JS, err = jetstream.New(u.nc)
	return err
}

// NATS is a connection to its server.
func (u *Up) NATS() *nats.Conn { return u.nc }

// Close ends it, its sandboxes and its state.
func (u *Up) Close() error {
	if u.conn != nil {
		_ = u.conn.Close()
	}
	if u.nc != nil {
		u.nc.Close()
	}
	if u.cmd == nil {
		return os.RemoveAll(u.State)
	}
	_ = u.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-u.done:
	case <-time.After(stopPatience):
		_ = u.cmd.Process.Kill()
		<-u.done
	}
	if out, err := exec.Command(u.bin, "down", "--state", u.State).CombinedOutput(); err != nil {
		// The state is what finds the sandboxes that are left: it stays.
		return fmt.Errorf("sandtrail down --state %s: %w: %s", u.State, err, out)
	}
	return os.RemoveAll(u.State)
}
