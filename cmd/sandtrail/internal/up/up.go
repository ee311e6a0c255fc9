// Package up runs all of Sandtrail in one process: an embedded NATS server, ClickHouse as a child, and the five services. It also runs what
// one more host needs that joins a fleet.
package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/tenant"
	gateway "github.com/sandtrail/sandtrail/services/gateway/app"
)

// Stack are the settings that `up` and `down` share.
type Stack struct {
	State        string `default:"${state}" help:"Directory for all that is kept: log, rows, sandboxes, workspaces, images, keys." type:"path"`
	Cache        string `help:"Directory for what is fetched or built once: runsc, the built-in ClickHouse, the default image. Default: sandtrail in the user's cache." type:"path" env:"SANDTRAIL_CACHE"`
	ClickHouse   string `name:"clickhouse" placeholder:"URL" help:"A ClickHouse server (clickhouse://user:password@host:9000). Default: a built-in one, on loopback." env:"SANDTRAIL_CLICKHOUSE"`
	SyncInterval Sync   `default:"1s" placeholder:"always|DURATION" help:"How often the log is flushed to disk. What was acknowledged since outlives a crash of the process, not one of the machine; with always nothing is lost, and appends are slower."`
	OTLP         string `name:"otlp-endpoint" help:"OTLP endpoint for traces (none unless set)." env:"SANDTRAIL_OTLP_ENDPOINT"`
	LogLevel     string `default:"warn" enum:"debug,info,warn,error" help:"Least level that is logged to stderr: ${enum}."`
	LogFormat    string `default:"text" enum:"json,text" help:"Log as ${enum}."`
}

// Up is `sandtrail up`.
type Up struct {
	Stack
	GRPC           string            `name:"grpc" default:"127.0.0.1:50051" placeholder:"ADDR" help:"Address of the gRPC API. Without API keys it must be a loopback address."`
	HTTP           string            `name:"http" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Address of the HTTP API, health and metrics. Without API keys it must be a loopback address."`
	NATS           string            `name:"nats" default:"127.0.0.1:4222" placeholder:"ADDR" help:"Loopback address of the embedded NATS server, for the nats CLI."`
	KeysFile       string            `placeholder:"FILE" help:"API keys; without them anybody on this host is let in (development mode)." type:"path"`
	RequireKeys    bool              `help:"No development mode: every call needs an API key, of the file or of the log (sandtrail key create)."`
	WebhookPrivate bool              `help:"Allow webhooks at addresses that are not public, and plain HTTP."`
	Quota          map[string]uint64 `placeholder:"NAME=N" help:"Quotas of tenants that have none of their own, such as sandboxes=20 or creates_per_minute=60; may be repeated."`
	EgressResolver string            `placeholder:"HOST:PORT" help:"DNS server that is asked for what programs of sandboxes connect to. Default: those of the host."`
	EgressRefuse   []string          `placeholder:"CIDR" help:"Addresses that no sandbox may connect to, beside this host's and all that are not public."`
	gateway.EdgeFlags
	PrepareOnly bool `help:"Get what is missing and end."`
}

// Addresses are where a running `up` can be reached; it writes them to STATE/up.json.
type Addresses struct {
	PID              int    `json:"pid"`
	GRPC             string `json:"grpc"`
	HTTP             string `json:"http"`
	NATS             string `json:"nats"`
	ClickHouseHTTP   string `json:"clickhouse_http,omitempty"`
	ClickHouseNative string `json:"clickhouse_native,omitempty"`
}

// Run serves until it is interrupted. Sandboxes and their execs go on without it, and with the next `up` on the same state.
func (u *Up) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	return u.run(ctx, os.Stdout, os.Stderr)
}

func (u *Up) run(ctx context.Context, out, logs io.Writer) error {
	go paceCollector(ctx)
	if err := tenant.ParseQuotas(u.Quota).Validate(); err != nil {
		return err
	}
	if u.PrepareOnly {
		return u.prepareOnly(ctx, out, logs)
	}
	s, err := u.open(ctx, out, logs)
	if err != nil {
		return err
	}
	defer s.close()
	started := time.Now()
	return s.serve(ctx, u, func(a Addresses) error {
		if err := writeJSON(filepath.Join(u.State, "up.json"), a); err != nil {
			return err
		}
		s.progress.ready(a, time.Since(started), u.KeysFile == "" && !u.RequireKeys && u.JWKSURL == "")
		return nil
	})
}

// Down is `sandtrail down`: it ends every sandbox of a state that no `up` serves, and records it.
type Down struct {
	Stack
}

// lock keeps two processes off one state.
func lock(state string) (*os.File, error) {
	for _, dir := range []string{"", "keys"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o700); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(state, "up.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another sandtrail serves %s", state)
		}
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	return f, nil
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (s *Stack) telemetry(ctx context.Context, logs io.Writer) (*telemetry.Telemetry, error) {
	return telemetry.Setup(ctx, telemetry.Config{
		Service: "sandtrail", OTLPEndpoint: s.OTLP, LogLevel: s.LogLevel, LogFormat: s.LogFormat, Output: logs,
	})
}

// resolve makes the paths absolute: children run elsewhere.
func (s *Stack) resolve() error {
	var err error
	if s.State, err = filepath.Abs(s.State); err != nil {
		return err
	}
	if s.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("find a cache directory (give --cache): %w", err)
		}
		s.Cache = filepath.Join(dir, "sandtrail")
	}
	s.Cache, err = filepath.Abs(s.Cache)
	return err
}
