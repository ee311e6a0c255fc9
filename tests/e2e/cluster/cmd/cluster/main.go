// Command cluster brings a real Kubernetes of one node with gVisor up on this machine and leaves it up, for tests and for trying things by hand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/node"
)

type commands struct {
	Dir string `env:"SANDTRAIL_CLUSTER" help:"Directory of the cluster: pki, logs, data. Default: cluster below the project's cache."`

	Up         up         `cmd:"" help:"Bring the cluster up and leave it up. The first time builds Kubernetes from source: about 20 minutes of CPU."`
	Down       down       `cmd:"" help:"End the cluster and remove its directory."`
	Status     status     `cmd:"" help:"Tell what runs."`
	Kubeconfig kubeconfig `cmd:"" help:"Print the path of the administrator's kubeconfig."`
	LoadImage  loadImage  `cmd:"" help:"Give the node the images of a tar file (OCI layout, or as docker save writes it)."`
	Build      build      `cmd:"" help:"Build and fetch what a cluster needs, and nothing else."`
}

type (
	up         struct{}
	down       struct{}
	status     struct{}
	kubeconfig struct{}
	build      struct{}
	loadImage  struct {
		File string `arg:"" type:"existingfile" help:"Tar file."`
	}
)

// place is the directory of the cluster that a command is about.
type place string

func (c *commands) place() (place, error) {
	if c.Dir != "" {
		dir, err := filepath.Abs(c.Dir)
		return place(dir), err
	}
	dir, err := binaries.CacheDir()
	return place(filepath.Join(dir, "cluster")), err
}

// lines tells each step of a build once, and how far it is every few seconds.
func lines() binaries.Progress {
	var last time.Time
	stage := ""
	return func(what string, done, total int, note string) {
		if what == stage && done != total && time.Since(last) < 5*time.Second {
			return
		}
		stage, last = what, time.Now()
		fmt.Fprintf(os.Stderr, "%s %s %d/%d %s\n", last.Format(time.TimeOnly), what, done, total, note)
	}
}

func (up) Run(ctx context.Context, dir place) error {
	begin := time.Now()
	b := binaries.Builder{Progress: lines()}
	if _, err := b.Node(ctx); err != nil {
		return err
	}
	built := time.Now()
	c, err := cluster.StartNode(ctx, string(dir), b, true)
	if err != nil {
		return err
	}
	if err := c.LoadSandboxImage(ctx, b); err != nil {
		return err
	}
	fmt.Printf("node %s is ready: programs %s, bring-up %s\nexport KUBECONFIG=%s\n", cluster.NodeName,
		built.Sub(begin).Round(time.Millisecond), time.Since(built).Round(time.Millisecond), c.Kubeconfig())
	return nil
}

func (down) Run(ctx context.Context, dir place) error {
	n, err := node.Open(string(dir))
	if err != nil && !errors.Is(err, node.ErrNotRunning) {
		return err
	}
	if n != nil {
		if err := n.Down(ctx); err != nil {
			return err
		}
	}
	return os.RemoveAll(string(dir))
}

func (status) Run(ctx context.Context, dir place) error {
	c, err := cluster.Attach(ctx, string(dir))
	if err != nil {
		return err
	}
	all, err := c.Status(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("API server %s, host as the cluster sees it %s\n", c.Server, c.HostAddress)
	for _, s := range all {
		state := "runs since " + s.Started.Format(time.TimeOnly)
		if !s.Running {
			state = "ended: " + s.Ended
		}
		fmt.Printf("%-20s %s\n", s.Name, state)
	}
	return nil
}

func (kubeconfig) Run(ctx context.Context, dir place) error {
	c, err := cluster.Attach(ctx, string(dir))
	if err != nil {
		return err
	}
	fmt.Println(c.Kubeconfig())
	return nil
}

func (l loadImage) Run(ctx context.Context, dir place) error {
	c, err := cluster.Attach(ctx, string(dir))
	if err != nil {
		return err
	}
	return c.LoadTar(ctx, l.File)
}

func (build) Run(ctx context.Context) error {
	p, err := binaries.Builder{Progress: lines()}.Node(ctx)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(append(p.Path, p.Kube), "\n"))
	return nil
}

func main() {
	var c commands
	k := kong.Parse(&c, kong.Name("cluster"), kong.UsageOnError())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := c.place()
	k.FatalIfErrorf(err)
	k.BindTo(ctx, (*context.Context)(nil))
	k.FatalIfErrorf(k.Run(dir))
}
