package usecase

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// typedPause is before another try at a terminal whose program is on its way.
const typedPause = 100 * time.Millisecond

// Typist is who types to a terminal. A terminal has one at a time: whoever comes later takes it over, by any gateway.
type Typist struct {
	u    *UseCases
	box  sandbox.Sandbox
	exec string
	id   string
	sub  *nats.Subscription
	// taken closes when somebody else has the terminal.
	taken chan struct{}
	// offset is how much was typed in all.
	offset uint64
}

const (
	// takenBy is what a typist says to the others of an exec, its id behind it.
	takenBy = "typist "
	// atOnce is the time within which two come at once: then the one with the higher id stays, and otherwise the later one.
	atOnce = time.Second
)

// Typist takes the terminal of an exec over. fresh: nothing was typed to it yet, and it need not run. Close it.
func (u *UseCases) Typist(ctx context.Context, p principal.Principal, sandboxID, execID string, fresh bool) (*Typist, error) {
	if err := p.Need(scopes.Execute); err != nil {
		return nil, err
	}
	s, err := u.locate(ctx, p, sandboxID)
	if err != nil {
		return nil, err
	}
	t := &Typist{u: u, box: s, exec: execID, id: fmt.Sprintf("%016x-%s", time.Now().UnixNano(), ids.New()), taken: make(chan struct{})}
	begun, readers := time.Now(), subject.Readers(s.Tenant, s.ID, execID)
	over := false
	t.sub, err = u.nc.Subscribe(readers, func(m *nats.Msg) {
		id, ok := strings.CutPrefix(string(m.Data), takenBy)
		if ok && id != t.id && !over && (id > t.id || time.Since(begun) > atOnce) {
			over = true
			close(t.taken)
		}
	})
	if err == nil {
		err = u.nc.Publish(readers, []byte(takenBy+t.id))
	}
	if err != nil {
		t.Close()
		return nil, unreachable(err)
	}
	if fresh {
		return t, nil
	}
	if t.offset, err = t.put(ctx, nil); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Close leaves the terminal.
func (t *Typist) Close() {
	if t.sub != nil {
		_ = t.sub.Unsubscribe() // the connection is closing if this fails
	}
}

// Taken closes when somebody else has the terminal.
func (t *Typist) Taken() <-chan struct{} { return t.taken }

// Offset is how many bytes were typed in all.
func (t *Typist) Offset() uint64 { return t.offset }

// Type gives data to the terminal and waits until it has taken all of it, also while its program is on its way or does not read. One at a
// time. An exec that has ended is illegal_state.
func (t *Typist) Type(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), maxTyped)
		taken, err := t.put(ctx, data[:n])
		if err != nil {
			return err
		}
		if done := taken - t.offset; taken > t.offset {
			data = data[min(done, uint64(len(data))):]
		}
		t.offset = max(t.offset, taken)
	}
	return nil
}

// maxTyped is the most bytes that go at once: so many a terminal takes without being read.
const maxTyped = 64 << 10

// put writes data behind what was typed and returns how much that is now.
func (t *Typist) put(ctx context.Context, data []byte) (uint64, error) {
	reply, err := t.call(ctx, &commandsv1.FileCall{Call: &commandsv1.FileCall_Stdin{
		Stdin: &commandsv1.StdinCall{ExecId: t.exec, Offset: t.offset, Data: data},
	}})
	return reply.GetStdinOffset(), err
}

// Resize gives the terminal another size. It may be called beside Type.
func (t *Typist) Resize(ctx context.Context, size *commonv1.TerminalSize) error {
	_, err := t.call(ctx, &commandsv1.FileCall{Call: &commandsv1.FileCall_Resize{Resize: &commandsv1.ResizeCall{ExecId: t.exec, Size: size}}})
	return err
}

// call asks the sandbox's worker, again while that may help: a repeated write writes nothing twice.
func (t *Typist) call(ctx context.Context, c *commandsv1.FileCall) (*commandsv1.FileReply, error) {
	for {
		reply, err := t.u.fileCall(ctx, t.box, c)
		var f *fault.Error
		switch {
		case err == nil:
			return reply, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.As(err, &f), f.Code != fault.Unavailable && f.Code != fault.DeadlineExceeded && f.Reason != fault.ReasonExecNotFound:
			return nil, err
		}
		wait := time.NewTimer(typedPause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, ctx.Err()
		case <-t.taken:
			wait.Stop()
			return nil, fault.New(fault.Conflict, fault.ReasonConflict, "somebody else has the terminal")
		}
	}
}

// OnTerminal returns an exec that has a terminal.
func (u *UseCases) OnTerminal(ctx context.Context, p principal.Principal, sandboxID, execID string) (sandbox.Exec, error) {
	x, err := u.Receipt(ctx, p, sandboxID, execID)
	if err == nil && x.Spec.GetTerminal() == nil {
		err = fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the command has no terminal")
	}
	return x, err
}

// Recent is the number of the chunk behind which the last bytes of an exec's output stand, most of them or a little more; 0 where that is
// all of it.
func (u *UseCases) Recent(ctx context.Context, x sandbox.Exec, most uint64) (after uint64, err error) {
	return output.Recent(ctx, u.js, subject.Exec(x.Tenant, x.Sandbox, x.ID), most)
}

// LongestExec is the longest time that an exec may ask for.
func (u *UseCases) LongestExec() time.Duration { return u.limits.MaxExecTimeout }

// UsualExec is how long an exec may take that asks for nothing.
func (u *UseCases) UsualExec() time.Duration { return u.limits.ExecTimeout }

// Ending ends when the gateway stops.
func (u *UseCases) Ending() context.Context { return u.base }

// Stopping closes when the gateway stops.
func (u *UseCases) Stopping() <-chan struct{} { return u.base.Done() }
