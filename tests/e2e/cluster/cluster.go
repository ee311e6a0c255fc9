// Package cluster brings up a real Kubernetes for tests on one machine: the control plane alone (etcd and an API server, a few seconds), or a
// whole node that runs pods in gVisor. Nothing outside of its directory and its namespaces changes on the host.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/node"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/pki"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// The API server refuses nothing to this user.
const (
	adminUser  = "admin"
	adminGroup = "system:masters"
)

// processes runs the programs of a cluster, in this process or in the node's init.
type processes interface {
	Start(ctx context.Context, spec process.Spec) error
	Signal(ctx context.Context, name string, sig syscall.Signal) error
	Wait(ctx context.Context, name string) error
	Slow(ctx context.Context, name string, pause, run time.Duration) error
	Status(ctx context.Context) ([]process.Status, error)
	Run(ctx context.Context, argv ...string) (string, error)
}

// Cluster is a cluster that runs. Its methods may be called from several goroutines.
type Cluster struct {
	// Dir holds everything of this cluster: pki, logs (NAME.log for each program), data.
	Dir string
	// Server is the URL of the API server, as tests reach it.
	Server string
	// HostAddress is this machine's address as the cluster reaches it: what listens there can be named in the cluster.
	HostAddress string
	// Client is the administrator's. It has no limit of requests of its own.
	Client kubernetes.Interface

	authority *pki.Authority
	processes processes
	programs  binaries.Programs // of a whole node
	node      *node.Node        // nil for a control plane alone
}

func (c *Cluster) connect() error {
	config, err := c.Config(adminUser, adminGroup)
	if err != nil {
		return err
	}
	c.Client, err = kubernetes.NewForConfig(config)
	return err
}

// AdminConfig is of a client that may do everything.
func (c *Cluster) AdminConfig() (*rest.Config, error) { return c.Config(adminUser, adminGroup) }

// Config is of a client that proves itself as a user in groups; what it may do, RBAC says. It has no limit of requests of its own.
func (c *Cluster) Config(user string, groups ...string) (*rest.Config, error) {
	k, err := c.authority.Kubeconfig(c.Server, user, groups...)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*k, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.authority.KubeconfigFile(adminUser) }

// WriteKubeconfig writes the kubeconfig of a user in groups below the cluster's directory and returns its path.
func (c *Cluster) WriteKubeconfig(user string, groups ...string) (string, error) {
	name := strings.NewReplacer("/", "-", ":", "-").Replace(user)
	return c.authority.KubeconfigFile(name), c.authority.WriteKubeconfig(name, c.Server, user, groups...)
}

// Status tells of every program of the cluster.
func (c *Cluster) Status(ctx context.Context) ([]process.Status, error) {
	return c.processes.Status(ctx)
}

// Log is what a program has written so far.
func (c *Cluster) Log(name string) string {
	text, err := os.ReadFile(filepath.Join(c.Dir, "logs", name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Ready waits until the API server says that it is ready, and no longer than it lives.
func (c *Cluster) Ready(ctx context.Context) error {
	return c.until(ctx, "the API server is ready", []string{Etcd, APIServer}, func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

const pollEvery = 50 * time.Millisecond

// until asks again until ask succeeds, the context ends, or one of the programs that it depends on ends.
func (c *Cluster) until(ctx context.Context, what string, need []string, ask func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		one, stop := context.WithTimeout(ctx, 10*time.Second)
		err := ask(one)
		stop()
		if err == nil {
			return nil
		}
		if ended := c.ended(ctx, need); ended != nil {
			return fmt.Errorf("wait until %s: %w", what, ended)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, errors.Join(ctx.Err(), err))
		}
	}
}

// ended is an error with the end of the log of a program that should run and does not.
func (c *Cluster) ended(ctx context.Context, need []string) error {
	all, err := c.processes.Status(ctx)
	if err != nil {
		return nil // ctx ended, or the node did, which the next question tells
	}
	for _, s := range all {
		if slices.Contains(need, s.Name) && !s.Running {
			return fmt.Errorf("%s ended (%s): %s", s.Name, s.Ended, tail(c.Log(s.Name), 15))
		}
	}
	return nil
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
