package kube

import (
	"context"
	"sync"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

// locks keep calls for one sandbox apart within this process. Other replicas are kept apart by what the cluster refuses.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (l *locks) lock(ctx context.Context, id string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		busy, taken := l.held[id]
		if !taken {
			mine := make(chan struct{})
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, id)
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func checkID(id string) error {
	if !ids.Valid(id) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "a sandbox id is a UUID in lower case")
	}
	return nil
}
