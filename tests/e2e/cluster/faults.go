package cluster

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// Kill ends a program by force and waits until it is gone. Nothing starts it again but Restart.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	return c.finish(ctx, name, syscall.SIGKILL)
}

// Stop asks a program to end, waits for it, and ends it by force after 20 s.
func (c *Cluster) Stop(ctx context.Context, name string) error {
	soft, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if c.finish(soft, name, syscall.SIGTERM) == nil {
		return nil
	}
	return c.Kill(ctx, name)
}

func (c *Cluster) finish(ctx context.Context, name string, sig syscall.Signal) error {
	if err := c.processes.Slow(ctx, name, 0, 0); err != nil {
		return err
	}
	s, err := c.program(ctx, name)
	if err != nil || !s.Running {
		return err
	}
	for _, sig := range []syscall.Signal{syscall.SIGCONT, sig} {
		if err := c.processes.Signal(ctx, name, sig); err != nil {
			return err
		}
	}
	return c.processes.Wait(ctx, name)
}

// Start starts a program that ended, as it was started before. It returns at once: Ready waits until the cluster is whole.
func (c *Cluster) Start(ctx context.Context, name string) error {
	s, err := c.program(ctx, name)
	if err != nil {
		return err
	}
	return c.processes.Start(ctx, s.Spec)
}

// Restart ends a program by force where it runs, and starts it.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	if err := c.Kill(ctx, name); err != nil {
		return err
	}
	return c.Start(ctx, name)
}

// Freeze stops a program where it is: its connections stay, and nobody answers. Thaw lets it go on.
func (c *Cluster) Freeze(ctx context.Context, name string) error {
	return c.processes.Signal(ctx, name, syscall.SIGSTOP)
}

// Thaw ends Freeze and Slow.
func (c *Cluster) Thaw(ctx context.Context, name string) error {
	if err := c.processes.Slow(ctx, name, 0, 0); err != nil {
		return err
	}
	return c.processes.Signal(ctx, name, syscall.SIGCONT)
}

// Slow makes a program take up to pause longer for whatever it is asked: it is frozen for pause and runs for run, by turns, until Thaw. Etcd
// with a pause of 200 ms and a run of 20 ms is as slow as one on a bad disk.
func (c *Cluster) Slow(ctx context.Context, name string, pause, run time.Duration) error {
	if pause <= 0 || run <= 0 {
		return fmt.Errorf("slow %s: pause %s and run %s must be above zero", name, pause, run)
	}
	return c.processes.Slow(ctx, name, pause, run)
}

// Running tells whether a program runs.
func (c *Cluster) Running(ctx context.Context, name string) (bool, error) {
	s, err := c.program(ctx, name)
	return s.Running, err
}

func (c *Cluster) program(ctx context.Context, name string) (s process.Status, err error) {
	all, err := c.processes.Status(ctx)
	if err != nil {
		return s, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return s, fmt.Errorf("this cluster has no %s", name)
}
