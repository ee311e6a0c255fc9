package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// Value is what an entry holds, as JSON. Its zero value is that of an entry which is not there.
type Value[T any] interface {
	// Clone shares nothing with the original that is ever changed.
	Clone() T
}

// Entries are entries of a bucket that several processes change by compare and set. Callers of one process queue for an entry instead
// of losing races.
type Entries[T Value[T]] struct {
	kv jetstream.KeyValue

	mu    sync.Mutex
	known map[string]*entry[T]
}

// entry is what this process last saw of an entry.
type entry[T any] struct {
	mu       sync.Mutex
	users    int
	revision uint64
	value    T
	// read: value is that of revision. fresh: it was read in this change.
	read, fresh bool
}

const (
	// races bounds those that are lost against other processes before ErrContended.
	races = 50
	// knownMost bounds the entries that are remembered; over it those that nobody uses are forgotten, which costs one read each.
	knownMost = 4096
)

// ErrContended: too many processes change the entry at the same time.
var ErrContended = errors.New("too many change the same entry at the same time")

// NewEntries opens a bucket.
func NewEntries[T Value[T]](ctx context.Context, js jetstream.JetStream, name string) (*Entries[T], error) {
	kv, err := js.KeyValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	return &Entries[T]{kv: kv, known: map[string]*entry[T]{}}, nil
}

// Keys lists every key that was ever written.
func (e *Entries[T]) Keys(ctx context.Context) ([]string, error) {
	l, err := e.kv.ListKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the keys of %s: %w", e.kv.Bucket(), err)
	}
	defer func() { _ = l.Stop() }()
	var keys []string
	for k := range l.Keys() {
		keys = append(keys, k)
	}
	return keys, nil
}

// Get reads an entry as a replica has it.
func (e *Entries[T]) Get(ctx context.Context, key string) (T, error) {
	var c entry[T]
	err := e.load(ctx, key, &c)
	return c.value, err
}

// Change applies f until its result is stored. f may change what it gets and says whether it did. What it refuses or leaves alone is only
// believed when it was decided on a fresh reading; a refusal is written too, unchanged: a reading from a replica may be old, only a write
// that succeeds proves that it was not. An error of f is returned as it is; other errors are those of the server, or ErrContended.
func (e *Entries[T]) Change(ctx context.Context, key string, f func(*T) (changed bool, err error)) error {
	return e.ChangeThen(ctx, key, f, func() {})
}

// ChangeThen is Change that calls then once a change is stored, before any later change of the entry by this process.
func (e *Entries[T]) ChangeThen(ctx context.Context, key string, f func(*T) (changed bool, err error), then func()) error {
	c, done := e.entry(key)
	defer done()
	c.fresh = false
	for range races {
		if !c.read {
			if err := e.load(ctx, key, c); err != nil {
				return err
			}
		}
		next := c.value.Clone()
		changed, err := f(&next)
		if (err != nil || !changed) && !c.fresh {
			c.read = false
			continue
		}
		if err == nil && !changed {
			return nil
		}
		if err != nil {
			next = c.value.Clone()
		}
		stored := e.store(ctx, key, c, next)
		if stored == nil {
			if err == nil {
				then()
			}
			return err
		}
		c.read = false
		if !lost(stored) {
			return stored
		}
	}
	return ErrContended
}

// entry gives the one of a key, locked.
func (e *Entries[T]) entry(key string) (c *entry[T], done func()) {
	e.mu.Lock()
	c, ok := e.known[key]
	if !ok {
		if len(e.known) >= knownMost {
			for k, other := range e.known {
				if other.users == 0 {
					delete(e.known, k)
				}
			}
		}
		c = &entry[T]{}
		e.known[key] = c
	}
	c.users++
	e.mu.Unlock()
	c.mu.Lock()
	return c, func() {
		c.mu.Unlock()
		e.mu.Lock()
		c.users--
		e.mu.Unlock()
	}
}

func (e *Entries[T]) load(ctx context.Context, key string, c *entry[T]) error {
	var value T
	stored, err := e.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		c.value, c.revision, c.read, c.fresh = value.Clone(), 0, true, true
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", key, e.kv.Bucket(), err)
	}
	if err := json.Unmarshal(stored.Value(), &value); err != nil {
		return fmt.Errorf("read %s of %s: %w", key, e.kv.Bucket(), err)
	}
	c.value, c.revision, c.read, c.fresh = value, stored.Revision(), true, true
	return nil
}

func (e *Entries[T]) store(ctx context.Context, key string, c *entry[T], next T) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("write %s of %s: %w", key, e.kv.Bucket(), err)
	}
	var revision uint64
	if c.revision == 0 {
		revision, err = e.kv.Create(ctx, key, data)
	} else {
		revision, err = e.kv.Update(ctx, key, data, c.revision)
	}
	if err != nil {
		return fmt.Errorf("write %s of %s: %w", key, e.kv.Bucket(), err)
	}
	c.value, c.revision = next, revision
	return nil
}

// lost reports whether somebody else has changed the entry first.
func lost(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongSequence) {
		return true
	}
	return errors.Is(err, jetstream.ErrKeyExists)
}

// wrongSequence is the server's second code for a lost race, which replicated streams answer.
const wrongSequence jetstream.ErrorCode = 10164
