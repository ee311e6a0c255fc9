package usecase

import (
	"context"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

const (
	// useMost bounds the sandboxes whose use is remembered as said; over it all are forgotten, which costs one command each.
	useMost = 4096
	// useWait is how long a use waits until it is recorded. Who would end the sandbox meanwhile waits for the same log.
	useWait = 2 * time.Second
	// useActor is who says it: a use is no command of the caller's.
	useActor = "service:gateway"
)

// uses are when this gateway may next leave unsaid that a sandbox with an idle timeout is in use.
type uses struct {
	mu    sync.Mutex
	until map[subject.Aggregate]time.Time
}

func (u *uses) said(agg subject.Aggregate) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Now().Before(u.until[agg])
}

func (u *uses) say(agg subject.Aggregate, until time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.until == nil || len(u.until) >= useMost {
		u.until = map[subject.Aggregate]time.Time{}
	}
	u.until[agg] = until
}

// use says that a sandbox with an idle timeout is about to be used. It fails where its end came first. Where nobody says what came of it the
// use goes on: it is recorded later, and until then nobody may be there to end the sandbox either.
func (u *UseCases) use(ctx context.Context, s sandbox.Sandbox) error {
	agg := subject.Sandbox(s.Tenant, s.ID)
	if s.IdleTimeout() == 0 || u.uses.said(agg) {
		return nil
	}
	begin := time.Now()
	inbox, err := u.inbox()
	if err != nil {
		return err
	}
	defer inbox.close()
	err = u.order(ctx, subject.SandboxCommand(s.Tenant, s.ID), &commandsv1.SandboxCommand{
		CommandId: ids.New(), TenantId: s.Tenant, SandboxId: s.ID, Actor: useActor, CorrelationId: telemetry.Correlation(ctx), Time: now(),
		ReplyTo: inbox.Subject, Command: &commandsv1.SandboxCommand_Use{Use: &commandsv1.UseSandbox{}},
	})
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, useWait)
	defer cancel()
	answered, err := u.outcome(wait, agg, inbox.next)
	if answered && err == nil {
		u.uses.say(agg, begin.Add(s.UseHolds(begin)))
	}
	return err
}

// using is use for as long as something goes on, its end included: until done is called.
func (u *UseCases) using(call context.Context, s sandbox.Sandbox) (done func(), err error) {
	if err := u.use(call, s); err != nil || s.IdleTimeout() == 0 {
		return func() {}, err
	}
	ctx, cancel := context.WithCancel(call)
	var over sync.WaitGroup
	over.Go(func() {
		tick := time.NewTicker(s.UseHolds(time.Now()))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = u.use(ctx, s) // the sandbox's end ends what goes on
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		over.Wait()
		_ = u.use(context.WithoutCancel(call), s)
	}, nil
}
