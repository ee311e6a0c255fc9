package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/ops"
)

// nodeEnv marks a process as one of the rig's NATS servers; its value is a node in JSON.
const nodeEnv = "SANDTRAIL_CHAOS_NODE"

// node is what a NATS server of the rig is told.
type node struct {
	Name string
	Dir  string
	Port int
	// Ops is the address of its metrics.
	Ops     string
	Cluster *natsserver.Cluster `json:",omitempty"`
}

// IsNode reports whether this process was started to be a NATS server. A program that uses a Rig asks first thing in main, and
// then ends with the code of NodeMain.
func IsNode() bool { return os.Getenv(nodeEnv) != "" }

// NodeMain serves NATS until SIGTERM or SIGINT, or until JetStream gives up on its disk, and returns the exit code. A supervisor starts it again.
func NodeMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var n node
	if err := json.Unmarshal([]byte(os.Getenv(nodeEnv)), &n); err != nil {
		log.Error("the description of the node is not valid", "error", err)
		return 2
	}
	s, err := natsserver.Start(natsserver.Options{Dir: n.Dir, Name: n.Name, Port: n.Port, SyncInterval: 5 * time.Second, Cluster: n.Cluster, Log: log})
	if err != nil {
		log.Error("the node did not start", "error", err)
		return 1
	}
	defer s.Shutdown()
	go serveMetrics(n.Ops, log)
	select {
	case <-ctx.Done():
		return 0
	case err := <-s.Failed():
		log.Error("the node failed", "error", err)
		return 1
	}
}

// serveMetrics shows what the Go runtime says of this process. A node serves without it too.
func serveMetrics(addr string, log *slog.Logger) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	s := &http.Server{Addr: addr, Handler: ops.Handler(registry), ReadHeaderTimeout: 5 * time.Second}
	log.Warn("the node shows no metrics", "error", s.ListenAndServe())
}

func (n node) command() (func() *exec.Cmd, error) {
	description, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return func() *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Args = []string{"chaos-nats-" + n.Name}
		cmd.Env = append(os.Environ(), nodeEnv+"="+string(description), "GOMEMLIMIT=1GiB")
		return cmd
	}, nil
}
