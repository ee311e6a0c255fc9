package keeper

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/toolbox/sentry"
)

const (
	// firstLook and lastLook are between two looks at whether a tree has ended by itself. Each look stops the sandbox for a moment.
	firstLook = 25 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// endTree ends every process of the tree, children with sessions and parents of their own included: TERM, and KILL for what
// is left after the grace time. Only the first call counts.
func (k *Keeper) endTree(p *program, reason string, grace time.Duration) {
	p.mu.Lock()
	if p.reason != "" {
		p.mu.Unlock()
		return
	}
	p.reason, p.ending = reason, make(chan struct{})
	p.mu.Unlock()
	defer close(p.ending)
	began := time.Now()
	deadline := began.Add(grace)
	mine := func(group uint32) bool { return group == p.tag }

	n, err := k.signal(p.tag, mine, syscall.SIGTERM)
	for wait := firstLook; err == nil && n > 0 && time.Now().Before(deadline); wait = min(2*wait, lastLook) {
		select {
		case <-k.box.gone:
			return
		case <-time.After(min(wait, time.Until(deadline))):
		}
		n, err = k.signal(p.tag, mine, 0)
	}
	if err == nil && n == 0 {
		return
	}
	if _, err := k.signal(p.tag, mine, syscall.SIGKILL); err != nil {
		k.log.Error("tree not ended from outside", "exec", p.id, "error", err)
	}
	// What was killed counts against the limit of processes until init has waited for it: the next command must not fail for that.
	if _, err = k.box.link.kill(p.tag, syscall.SIGKILL); err != nil {
		k.log.Error("tree not ended by init", "exec", p.id, "error", err)
		_ = k.box.control.Signal(context.Background(), p.pid, syscall.SIGKILL)
	}
}

// signal sends a signal to the processes of groups and says how many live; signal 0 only counts. Where it cannot be done from
// outside the sandbox, init does it for the one group.
func (k *Keeper) signal(group uint32, member func(uint32) bool, signal syscall.Signal) (int, error) {
	census, err := k.box.control.SignalGroup(context.Background(), member, signal)
	if errors.Is(err, sentry.ErrUnsupported) {
		return k.box.link.kill(group, signal)
	}
	k.counted(census.Tasks[k.spec.UID])
	return census.Members, err
}

// signalAll sends a signal to every program of the sandbox, those in the background included.
func (k *Keeper) signalAll(signal syscall.Signal) error {
	_, err := k.box.control.SignalGroup(context.Background(), func(group uint32) bool { return group > firstTag }, signal)
	if errors.Is(err, sentry.ErrUnsupported) {
		return k.box.link.killAll(signal)
	}
	return err
}
