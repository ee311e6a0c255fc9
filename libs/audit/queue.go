package audit

import (
	"context"
	"io"
)

// compactAt is how many places of taken leaves are kept until they are given back.
const compactAt = 1 << 14

// queue holds leaves that are not in the tree yet, first in, first out.
type queue struct {
	all  [][]byte
	from int
}

func (q *queue) len() uint64      { return uint64(len(q.all) - q.from) } //nolint:gosec // a length
func (q *queue) push(leaf []byte) { q.all = append(q.all, leaf) }

func (q *queue) pop() []byte {
	leaf := q.all[q.from]
	q.all[q.from] = nil
	if q.from++; q.from == len(q.all) || q.from > compactAt {
		q.all = q.all[:copy(q.all, q.all[q.from:])]
		q.from = 0
	}
	return leaf
}

// batches is how many batches are read ahead.
const batches = 2

// ahead reads a source in a goroutine of its own, so that reading and checking each have a processor.
type ahead struct {
	s    Source
	got  chan batch
	stop context.CancelFunc
}

type batch struct {
	entries []Entry
	err     error
}

func readAhead(ctx context.Context, s Source) Source {
	ctx, stop := context.WithCancel(ctx)
	a := &ahead{s: s, got: make(chan batch, batches), stop: stop}
	go func() {
		defer close(a.got)
		for {
			entries, err := s.Next(ctx)
			select {
			case a.got <- batch{entries, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return a
}

func (a *ahead) Next(ctx context.Context) ([]Entry, error) {
	select {
	case b, ok := <-a.got:
		if !ok {
			return nil, io.EOF
		}
		return b.entries, b.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close waits for the goroutine: the source is its own until then.
func (a *ahead) Close() {
	a.stop()
	for open := true; open; {
		_, open = <-a.got
	}
	a.s.Close()
}
