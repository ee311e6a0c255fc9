package usecase

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/lease"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// An exec that is talked to is a detached one with its standard input open. What it is stands in its arguments, behind -c and a program of ours:
// a label, and then the name that its caller gave it. So the log alone knows which there are.
const labelAt, nameAt = 2, 3

// LabelledArgs are the arguments of an exec that runs a program by -c and has a label, and a name where it is not empty.
func LabelledArgs(program, label, name string) []string {
	args := []string{"-c", program, label}
	if name != "" {
		args = append(args, name)
	}
	return args
}

// LabelOf is the label of an exec and the name behind it; empty without one.
func LabelOf(s *eventsv1.ExecSpec) (label, name string) {
	args := s.GetArgs()
	if len(args) <= labelAt || len(args) > nameAt+1 || args[0] != "-c" || !s.GetKeepStdin() || !s.GetDetach() {
		return "", ""
	}
	if len(args) > nameAt {
		name = args[nameAt]
	}
	return args[labelAt], name
}

// Labelled gives the execs of a sandbox that have a label, running or over, oldest first; not_found without the sandbox. It costs one pass over the sandbox's execs.
func (u *UseCases) Labelled(ctx context.Context, p principal.Principal, sandboxID, label string) ([]sandbox.Exec, error) {
	var all []sandbox.Exec
	err := u.eachExec(ctx, p, sandboxID, func(s *eventsv1.ExecSpec) bool {
		l, _ := LabelOf(s)
		return l == label
	}, func(x sandbox.Exec) { all = append(all, x) })
	slices.SortFunc(all, func(a, b sandbox.Exec) int { return cmp.Compare(a.FirstSeq, b.FirstSeq) })
	return all, err
}

// Begin starts a detached exec and returns its id once its worker has accepted it.
func (u *UseCases) Begin(ctx context.Context, p principal.Principal, key string, req *computev1.ExecCommandRequest) (string, error) {
	w := &begun{}
	_, err := u.Exec(ctx, p, key, req, w)
	if errors.Is(err, errBegun) {
		err = nil
	}
	return w.id, err
}

// begun follows an exec until its worker has it.
type begun struct{ id string }

var errBegun = errors.New("it has begun")

func (w *begun) Named(id string) error {
	w.id = id
	return nil
}

func (w *begun) Output(i output.Item) error {
	if i.Accepted || i.Chunk != nil {
		return errBegun
	}
	return nil
}

// Talk is an exec as package talk has it.
type Talk struct {
	u       *UseCases
	p       principal.Principal
	box, id string
}

// Talk reaches an exec of a sandbox by its id. Whether there is one its methods say.
func (u *UseCases) Talk(p principal.Principal, sandboxID, execID string) Talk {
	return Talk{u: u, p: p, box: sandboxID, id: execID}
}

// Write implements talk.Exec.
func (t Talk) Write(ctx context.Context, offset uint64, data []byte) (uint64, error) {
	return t.u.Stdin(ctx, t.p, t.box, t.id, offset, data, false)
}

// Last implements talk.Exec.
func (t Talk) Last(ctx context.Context) (uint64, error) {
	if err := t.p.Need(reading); err != nil {
		return 0, err
	}
	agg, err := t.u.locateExec(ctx, t.p, t.box, t.id)
	if err != nil {
		return 0, err
	}
	return output.Last(ctx, t.u.js, agg)
}

// Follow implements talk.Exec.
func (t Talk) Follow(ctx context.Context, after uint64, each func(*transcript.Chunk) error) error {
	_, err := t.u.Attach(ctx, t.p, t.box, t.id, after, chunksOnly(each))
	return err
}

// chunksOnly is a Watcher of nothing but output.
type chunksOnly func(*transcript.Chunk) error

func (chunksOnly) Named(string) error { return nil }

func (w chunksOnly) Output(i output.Item) error {
	if i.Chunk == nil {
		return nil
	}
	return w(i.Chunk)
}

// aloneTTL is how long nobody may talk to an exec whose gateway was killed while it did.
const aloneTTL = 3 * time.Second

// Alone has do run while nobody else, by any gateway, does anything alone about the same exec, or about all of a sandbox: what is its id. do's
// context ends when that is no longer certain. Where somebody does it is fault.Conflict, after a second or so: nobody waits for another.
func (u *UseCases) Alone(ctx context.Context, p principal.Principal, what string, do func(context.Context) error) error {
	if err := p.Need(scopes.Execute); err != nil {
		return err
	}
	kv, err := u.opened(ctx, &u.lease, topology.BucketLease)
	if err != nil {
		return err
	}
	var failed error
	err = lease.Lease{KV: kv, Key: topology.LeaseTalk(what), Holder: ids.New(), TTL: aloneTTL, Log: u.logger}.Once(ctx, func(held context.Context) error {
		failed = do(held)
		if held.Err() != nil && ctx.Err() == nil && failed != nil {
			failed = fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the log could not be reached for too long; what was begun goes on, and may be done").WithRetry(time.Second).Because(failed)
		}
		return nil
	})
	switch {
	case errors.Is(err, lease.ErrHeld):
		return fault.New(fault.Conflict, fault.ReasonConflict, "somebody else is at it; it takes one at a time").WithRetry(time.Second)
	case err != nil && ctx.Err() != nil:
		return fault.New(fault.Cancelled, fault.ReasonCancelled, "the caller went away").Because(err)
	case err != nil:
		return unreachable(err)
	}
	return failed
}
