// Package transcript is the recorded output of an exec: chunks in stream OUT under one subject. Each chunk holds bytes of one
// of the two streams in the order in which they came; numbers count from 1 over both.
package transcript

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Header names of a chunk.
const (
	HeaderStream = "Sandtrail-Stream"
	HeaderOffset = "Sandtrail-Offset"
	HeaderChunk  = "Sandtrail-Chunk"
	HeaderTime   = "Sandtrail-Time"
	HeaderGapTo  = "Sandtrail-Gap-To"
	// HeaderStdoutEnd and HeaderStderrEnd are both streams' offsets behind this chunk, so that whoever goes on needs only the last one.
	HeaderStdoutEnd = "Sandtrail-Stdout-End"
	HeaderStderrEnd = "Sandtrail-Stderr-End"
)

// Streams of a program.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Chunk is one piece of output, or a gap where output was dropped.
type Chunk struct {
	// Number counts from 1 over both streams.
	Number uint64
	Stream string
	// Offset of the first byte in its stream.
	Offset uint64
	Data   []byte
	// GapTo is set where the bytes from Offset up to it were dropped; Data is empty then.
	GapTo uint64
	Time  time.Time
	// StdoutEnd and StderrEnd are the offsets behind this chunk.
	StdoutEnd, StderrEnd uint64
	// Seq is the stream sequence; 0 on a chunk that is not stored yet.
	Seq uint64
}

// Encode makes the message of a chunk.
func Encode(subject string, c Chunk) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = c.Data
	m.Header[HeaderStream] = []string{c.Stream}
	m.Header[HeaderOffset] = []string{strconv.FormatUint(c.Offset, 10)}
	m.Header[HeaderChunk] = []string{strconv.FormatUint(c.Number, 10)}
	m.Header[HeaderTime] = []string{c.Time.UTC().Format(time.RFC3339Nano)}
	m.Header[HeaderStdoutEnd] = []string{strconv.FormatUint(c.StdoutEnd, 10)}
	m.Header[HeaderStderrEnd] = []string{strconv.FormatUint(c.StderrEnd, 10)}
	if c.GapTo > 0 {
		m.Header[HeaderGapTo] = []string{strconv.FormatUint(c.GapTo, 10)}
	}
	return m
}

// Decode reads a stored or live chunk. A live one has its sequence in the header that RePublish adds.
func Decode(h nats.Header, data []byte, seq uint64) (Chunk, error) {
	c := Chunk{Stream: h.Get(HeaderStream), Data: data, Seq: seq}
	if c.Stream != Stdout && c.Stream != Stderr {
		return c, fmt.Errorf("chunk at %d: %q is no stream", seq, c.Stream)
	}
	for name, to := range map[string]*uint64{HeaderOffset: &c.Offset, HeaderChunk: &c.Number} {
		n, err := strconv.ParseUint(h.Get(name), 10, 64)
		if err != nil {
			return c, fmt.Errorf("chunk at %d: %s: %w", seq, name, err)
		}
		*to = n
	}
	for name, to := range map[string]*uint64{
		HeaderGapTo: &c.GapTo, HeaderStdoutEnd: &c.StdoutEnd, HeaderStderrEnd: &c.StderrEnd, jetstream.SequenceHeader: &c.Seq,
	} {
		if v := h.Get(name); v != "" {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return c, fmt.Errorf("chunk at %d: %s: %w", seq, name, err)
			}
			*to = n
		}
	}
	if t, err := time.Parse(time.RFC3339Nano, h.Get(HeaderTime)); err == nil {
		c.Time = t
	}
	return c, nil
}

// Read gives the stored chunks of a subject from stream sequence from on to each, until the present end or until each fails. A
// chunk that is stored twice (the retry of a publish whose window had passed) comes twice: readers go by number.
func Read(ctx context.Context, js jetstream.JetStream, subject string, from uint64, each func(Chunk) error) error {
	var refused error
	err := directget.Each(ctx, js, topology.StreamOutput, subject, from, func(m directget.Message) error {
		c, err := Decode(m.Header, m.Data, m.Seq)
		if err == nil {
			err = each(c)
		}
		refused = err
		return err
	})
	if err != nil && refused == nil {
		return unreachable(err)
	}
	return err
}

func unreachable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the recorded output cannot be read now; try again").
		WithRetry(time.Second).Because(err)
}
