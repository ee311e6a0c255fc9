package workspace

import (
	"context"
	"path/filepath"
	"time"

	"github.com/sandtrail/sandtrail/libs/ids"
)

// Ready is how many workspaces lie ready now.
func (s *Store) Ready() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pool)
}

// take gives one of the pool and has it filled again. It never waits.
func (s *Store) take(size uint64) (string, bool) {
	if size != DefaultBytes || s.o.Pool == 0 {
		return "", false
	}
	defer s.wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pool) == 0 {
		return "", false
	}
	path := s.pool[len(s.pool)-1]
	s.pool = s.pool[:len(s.pool)-1]
	return path, true
}

func (s *Store) wake() {
	select {
	case s.fill <- struct{}{}:
	default:
	}
}

// refillRetry is how long the pool rests after a failure, such as a full disk; a create then makes its own and says why it cannot.
const refillRetry = 10 * time.Second

func (s *Store) keepFull(ctx context.Context) {
	defer close(s.done)
	for {
		retry := (<-chan time.Time)(nil)
		if err := s.top(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("cannot fill the pool of workspaces", "error", err)
			retry = time.After(refillRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.fill:
		case <-retry:
		}
	}
}

func (s *Store) top(ctx context.Context) error {
	for s.Ready() < s.o.Pool {
		if err := s.checkFree(); err != nil {
			return err
		}
		path := filepath.Join(s.o.Dir, poolDir, ids.New()+suffix)
		if err := s.format(ctx, path, DefaultBytes); err != nil {
			return err
		}
		s.mu.Lock()
		s.pool = append(s.pool, path)
		s.mu.Unlock()
	}
	return nil
}
