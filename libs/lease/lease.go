// Package lease lets one of several processes do something at a time: the one whose name stands in an entry of the bucket of leases.
//
// No clock is compared with another one: a holder writes its entry again and again, and who waits takes it over once it has seen the
// same revision for a whole TTL of its own clock. A holder that cannot write stops after two thirds of that, so before anybody else
// begins. A process that is halted in between may still do a little when it wakes: what it does must not depend on being alone.
package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Lease is one entry of the bucket and one process that wants it.
type Lease struct {
	// KV is the bucket of leases.
	KV jetstream.KeyValue
	// Key is what is leased, Holder this process; no other process has the same.
	Key, Holder string
	// TTL is how long a holder that has vanished keeps the lease, about: 3 s.
	TTL time.Duration
	Log *slog.Logger
}

const (
	defaultTTL = 3 * time.Second
	// parts is how often a lease is written within a TTL.
	parts = 4
)

func (l Lease) ttl() time.Duration {
	if l.TTL > 0 {
		return l.TTL
	}
	return defaultTTL
}

// Run has do run whenever this process has the lease, until ctx ends; do ends with the context that it is given. An error of do ends
// Run. The lease is given back at once when Run ends.
func (l Lease) Run(ctx context.Context, do func(ctx context.Context) error) error {
	tick := time.NewTicker(l.ttl() / parts)
	defer tick.Stop()
	w := watch{ttl: l.ttl()}
	for {
		revision, err := l.take(ctx, &w)
		if err != nil && ctx.Err() == nil {
			l.Log.Warn("the lease cannot be read or written", "lease", l.Key, "error", err)
		}
		if revision > 0 {
			l.Log.Info("lease taken", "lease", l.Key, "holder", l.Holder)
			if err := l.hold(ctx, revision, do); err != nil {
				return err
			}
			l.Log.Info("lease given up", "lease", l.Key, "holder", l.Holder)
			w = watch{ttl: l.ttl()}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// watch is how long another holder's entry has not changed.
type watch struct {
	ttl      time.Duration
	revision uint64
	since    time.Time
}

// over reports whether an entry has stood unchanged for a TTL.
func (w *watch) over(revision uint64) bool {
	if revision != w.revision {
		w.revision, w.since = revision, time.Now()
	}
	return time.Since(w.since) >= w.ttl
}

// take gives the revision of this process's entry; 0 while somebody else has the lease.
func (l Lease) take(ctx context.Context, w *watch) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl())
	defer cancel()
	e, err := l.KV.Get(ctx, l.Key)
	var revision uint64
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		revision, err = l.KV.Create(ctx, l.Key, []byte(l.Holder))
	case err != nil:
		return 0, err
	case string(e.Value()) == l.Holder, w.over(e.Revision()):
		revision, err = l.KV.Update(ctx, l.Key, []byte(l.Holder), e.Revision())
	default:
		return 0, nil
	}
	if errors.Is(err, jetstream.ErrKeyExists) || wrongRevision(err) {
		return 0, nil
	}
	return revision, err
}

// wrongRevision: somebody else has written the entry. A stream with replicas says so in another way than one without.
func wrongRevision(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// hold runs do while the lease is this process's.
func (l Lease) hold(ctx context.Context, revision uint64, do func(ctx context.Context) error) error {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- do(inner) }()
	tick := time.NewTicker(l.ttl() / parts)
	defer tick.Stop()
	written := time.Now()
	for {
		select {
		case err := <-done:
			l.release(ctx, revision)
			return err
		case <-tick.C:
		}
		if inner.Err() != nil {
			continue
		}
		begin := time.Now()
		limited, cancel := context.WithTimeout(inner, l.ttl()/parts)
		next, err := l.KV.Update(limited, l.Key, []byte(l.Holder), revision)
		cancel()
		switch {
		case err == nil:
			revision, written = next, begin
		case ctx.Err() != nil:
		case wrongRevision(err) && !l.stored(inner, &revision):
			l.Log.Warn("the lease is somebody else's", "lease", l.Key)
			stop()
		case time.Since(written) >= l.ttl()*2/3:
			l.Log.Warn("the lease could not be kept", "lease", l.Key, "error", err)
			stop()
		}
	}
}

// stored reports whether the entry is this process's all the same: the acknowledgement of an earlier write may have been lost.
func (l Lease) stored(ctx context.Context, revision *uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, l.ttl()/parts)
	defer cancel()
	e, err := l.KV.Get(ctx, l.Key)
	if err != nil || string(e.Value()) != l.Holder {
		return false
	}
	*revision = e.Revision()
	return true
}

// release takes the entry away, so that nobody has to wait for its end.
func (l Lease) release(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.ttl()/parts)
	defer cancel()
	if err := l.KV.Delete(ctx, l.Key, jetstream.LastRevision(revision)); err != nil && !wrongRevision(err) {
		l.Log.Warn("the lease was not given back", "lease", l.Key, "error", err)
	}
}

// ErrHeld: another process has the lease.
var ErrHeld = errors.New("the lease is held by another")

// Once has do run one time, with the lease, and gives its error; do's context ends when the lease is lost. It takes up to a TTL to tell a
// holder that has vanished from one that lives, and then gives ErrHeld.
func (l Lease) Once(ctx context.Context, do func(ctx context.Context) error) error {
	tick := time.NewTicker(l.ttl() / parts)
	defer tick.Stop()
	w := watch{ttl: l.ttl()}
	for {
		seen := w.revision
		revision, err := l.take(ctx, &w)
		switch {
		case err != nil:
			return err
		case revision > 0:
			return l.hold(ctx, revision, do)
		case seen != 0 && w.revision != seen:
			return ErrHeld
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
