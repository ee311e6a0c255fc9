package output

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// Last is the number of an exec's newest chunk, 0 without one.
func Last(ctx context.Context, js jetstream.JetStream, exec subject.Aggregate) (uint64, error) {
	m, err := stored.One(ctx, js, topology.StreamOutput, subject.Output(exec.Tenant, exec.Sandbox, exec.ID), 0)
	if err != nil || m == nil {
		return 0, err
	}
	c, err := transcript.Decode(m.Header, m.Data, m.Seq)
	return c.Number, err
}

// Recent is the number of the chunk behind which the last most bytes of an exec's output stand, of both streams and a chunk more at most;
// 0 where that is all. What is no longer kept is left out.
func Recent(ctx context.Context, js jetstream.JetStream, exec subject.Aggregate, most uint64) (uint64, error) {
	first, _, err := search(ctx, js, exec, func(c, last *transcript.Chunk) bool {
		return c.StdoutEnd+c.StderrEnd+most >= last.StdoutEnd+last.StderrEnd
	})
	if err != nil || first == nil {
		return 0, err
	}
	return first.Number - 1, nil
}

// Behind is the first chunk that has something of an exec's stdout behind an offset, nil where there is nothing yet; and its last chunk, nil
// without one.
func Behind(ctx context.Context, js jetstream.JetStream, exec subject.Aggregate, stdout uint64) (first, last *transcript.Chunk, err error) {
	return search(ctx, js, exec, func(c, _ *transcript.Chunk) bool { return c.StdoutEnd > stdout })
}

// search finds the first chunk of an exec that is right, nil without one, and its last chunk. Where one is right, so are all behind it.
func search(
	ctx context.Context, js jetstream.JetStream, exec subject.Aggregate, right func(c, last *transcript.Chunk) bool,
) (first, last *transcript.Chunk, err error) {
	out := subject.Output(exec.Tenant, exec.Sandbox, exec.ID)
	at := func(seq uint64) (*transcript.Chunk, error) {
		m, err := stored.One(ctx, js, topology.StreamOutput, out, seq)
		if err != nil || m == nil {
			return nil, err
		}
		c, err := transcript.Decode(m.Header, m.Data, m.Seq)
		return &c, err
	}
	last, err = at(0)
	if err != nil || last == nil || !right(last, last) {
		return nil, last, err
	}
	low, high := uint64(1), last.Seq
	first = last
	for low < high {
		middle := low + (high-low)/2
		c, err := at(middle)
		switch {
		case err != nil:
			return nil, nil, err
		case c == nil:
			high = middle
		case right(c, last):
			first, high = c, middle
		default:
			low = c.Seq + 1
		}
	}
	return first, last, nil
}
