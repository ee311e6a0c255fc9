package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Probe asks whether the system works: an exec in a sandbox that is there, and a create.
type Probe struct {
	seed uint64
	// name is its tenant too: one probe must not take another's places.
	name   string
	client *Client
	number atomic.Int64

	mu      sync.Mutex
	sandbox string
	cleanup sync.WaitGroup
}

// NewProbe makes a probe with a connection of its own.
func NewProbe(seed uint64, name, addr string, j *journal.Journal) (*Probe, error) {
	c, err := NewClient("probe-"+name, addr, j)
	if err != nil {
		return nil, err
	}
	return &Probe{seed: seed, name: "probe-" + name, client: c}, nil
}

// Works returns once an exec and a create have succeeded, both asked for after the call.
func (p *Probe) Works(ctx context.Context) error {
	made := make(chan error, 1)
	go func() { made <- p.create(ctx) }()
	return errors.Join(p.exec(ctx), <-made)
}

// Close destroys what is left.
func (p *Probe) Close(ctx context.Context) error {
	p.cleanup.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.sandbox != "" {
		err = p.destroy(ctx, p.sandbox)
	}
	return errors.Join(err, p.client.Close())
}

func (p *Probe) id() string { return fmt.Sprintf("%s-%x-%d", p.name, p.seed, p.number.Add(1)) }

// obtain makes a sandbox, again under another key where it was refused.
func (p *Probe) obtain(ctx context.Context) (string, error) {
	pace := newPacer()
	for {
		id := p.id()
		sandbox, err := p.client.Create(ctx, id, createRequest(p.name, id))
		if err == nil {
			return sandbox, nil
		}
		if err := pace.wait(ctx, err); err != nil {
			return "", err
		}
	}
}

// run runs the shortest command there is.
func (p *Probe) run(ctx context.Context, sandbox string) error {
	id := p.id()
	program := &journal.Program{Token: id, Width: 64, StdoutLines: 1}
	req := &computev1.ExecCommandRequest{SandboxId: sandbox}
	req.Command, req.Args = program.Command()
	end, err := p.client.Exec(ctx, Run{Tenant: p.name, Key: id, Program: program, Request: req})
	if err == nil && end.Completed.GetExitCode() != 0 {
		err = status.Errorf(codes.Unknown, "the probe ended with %d: %s", end.Completed.GetExitCode(), end.Completed.GetReason())
	}
	if err == nil && end.Completed == nil {
		err = status.Error(codes.DataLoss, "the probe is lost")
	}
	return err
}

func (p *Probe) exec(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pace := newPacer()
	for {
		if p.sandbox == "" {
			var err error
			if p.sandbox, err = p.obtain(ctx); err != nil {
				return err
			}
		}
		err := p.run(ctx, p.sandbox)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		// Its sandbox is gone, or the disk is full: another one is to do it.
		p.discard(ctx, p.sandbox)
		p.sandbox = ""
		if err := pace.wait(ctx, err); err != nil {
			return err
		}
	}
}

func (p *Probe) create(ctx context.Context) error {
	pace := newPacer()
	for {
		sandbox, err := p.obtain(ctx)
		if err != nil {
			return err
		}
		err = p.run(ctx, sandbox)
		p.discard(ctx, sandbox)
		if err == nil {
			return nil
		}
		if err := pace.wait(ctx, err); err != nil {
			return err
		}
	}
}

func (p *Probe) discard(ctx context.Context, sandbox string) {
	ctx = context.WithoutCancel(ctx)
	p.cleanup.Go(func() { _ = p.destroy(ctx, sandbox) })
}

func (p *Probe) destroy(ctx context.Context, sandbox string) error {
	return p.client.Destroy(ctx, p.name, sandbox+"-destroy", sandbox)
}
