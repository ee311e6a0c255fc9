// Package relay carries the output of one exec from its toolbox into stream OUT: each byte once, in order, behind a guard
// that lets only one relay write at a time.
//
// One publish is in flight for each exec, and it says behind which message of the exec's subject it must stand. What arrives
// meanwhile gathers into the next chunk, so a fast program makes large chunks instead of a deep pipeline. The guard holds on one
// server and on a cluster alike, which neither message ids alone (their window ends, and two relays cut chunks differently) nor
// pipelined guards do (a cluster refuses a second guarded publish to a subject while the first is on its way).
package relay

import (
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// HeaderState is all that the next relay needs to go on behind a chunk. Opaque to readers; the other headers are those of
// package transcript.
const HeaderState = "Sandtrail-Relay-State"

// headerSealed says that no chunk stands behind this one, ever: what is recorded of the output is final.
const headerSealed = "Sandtrail-Relay-Sealed"

// Stream numbers of toolbox/v1.
const (
	Stdout = 1
	Stderr = 2
)

// maxGaps bounds the gaps that are listed; bytes of later ones are counted only.
const maxGaps = 64

// Name is the stream's name in headers, "" for a number that is none.
func Name(stream uint32) string {
	switch stream {
	case Stdout:
		return transcript.Stdout
	case Stderr:
		return transcript.Stderr
	default:
		return ""
	}
}

// StreamPosition is how far one output stream is stored.
type StreamPosition struct {
	// End is the offset of the next byte.
	End uint64
	// Dropped is how many bytes before End are not stored.
	Dropped uint64
	Gaps    []*eventsv1.Gap
	sum     hash.Hash
}

// Position is how far the output of one exec is stored in OUT. The zero Position is the start.
type Position struct {
	// Chunk is the number of the last chunk, Seq its sequence in OUT; 0: none.
	Chunk uint64
	Seq   uint64
	// Sealed: nothing will be stored behind it.
	Sealed bool

	stdout, stderr StreamPosition
}

// Stream gives the position of Stdout or Stderr.
func (p *Position) Stream(stream uint32) *StreamPosition {
	s := &p.stdout
	if stream == Stderr {
		s = &p.stderr
	}
	if s.sum == nil {
		s.sum = sha256.New()
	}
	return s
}

// Output is the fact of a stream's output: totals and the sha256 of the bytes kept, in order.
func (p *Position) Output(stream uint32) *eventsv1.Output {
	s := p.Stream(stream)
	return &eventsv1.Output{Bytes: s.End, DroppedBytes: s.Dropped, Sha256: s.sum.Sum(nil), Gaps: s.Gaps}
}

// skip records that bytes up to to are not there.
func (s *StreamPosition) skip(to uint64) {
	if n := len(s.Gaps); n > 0 && s.Gaps[n-1].GetTo() == s.End {
		s.Gaps[n-1] = &eventsv1.Gap{From: s.Gaps[n-1].GetFrom(), To: to}
	} else if n < maxGaps {
		s.Gaps = append(s.Gaps, &eventsv1.Gap{From: s.End, To: to})
	}
	s.Dropped += to - s.End
	s.End = to
}

type streamState struct {
	Dropped uint64      `json:"d,omitempty"`
	Gaps    [][2]uint64 `json:"g,omitempty"`
	// Sum is the state of the sha256 so far.
	Sum []byte `json:"h,omitempty"`
}

type relayState struct {
	Stdout streamState `json:"1"`
	Stderr streamState `json:"2"`
}

func (s *StreamPosition) state() (streamState, error) {
	if s.End == 0 {
		return streamState{}, nil
	}
	out := streamState{Dropped: s.Dropped}
	for _, g := range s.Gaps {
		out.Gaps = append(out.Gaps, [2]uint64{g.GetFrom(), g.GetTo()})
	}
	m, ok := s.sum.(encoding.BinaryMarshaler)
	if !ok {
		return out, errors.New("the state of the sha256 cannot be stored")
	}
	var err error
	out.Sum, err = m.MarshalBinary()
	return out, err
}

func (s *StreamPosition) restore(end uint64, st streamState) error {
	*s = StreamPosition{End: end, Dropped: st.Dropped, sum: sha256.New()}
	for _, g := range st.Gaps {
		s.Gaps = append(s.Gaps, &eventsv1.Gap{From: g[0], To: g[1]})
	}
	if end == 0 {
		return nil
	}
	u, ok := s.sum.(encoding.BinaryUnmarshaler)
	if !ok {
		return errors.New("the state of the sha256 cannot be read")
	}
	return u.UnmarshalBinary(st.Sum)
}

// put writes where the exec stands into the headers of its last chunk.
func (p *Position) put(h nats.Header) error {
	var st relayState
	var err error
	if st.Stdout, err = p.Stream(Stdout).state(); err != nil {
		return err
	}
	if st.Stderr, err = p.Stream(Stderr).state(); err != nil {
		return err
	}
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	h.Set(transcript.HeaderChunk, strconv.FormatUint(p.Chunk, 10))
	h.Set(transcript.HeaderStdoutEnd, strconv.FormatUint(p.stdout.End, 10))
	h.Set(transcript.HeaderStderrEnd, strconv.FormatUint(p.stderr.End, 10))
	h.Set(HeaderState, string(b))
	return nil
}

// parsePosition reads where an exec stands from the headers of its last chunk.
func parsePosition(seq uint64, h nats.Header) (Position, error) {
	p := Position{Seq: seq, Sealed: h.Get(headerSealed) != ""}
	var stdout, stderr uint64
	for k, v := range map[string]*uint64{transcript.HeaderChunk: &p.Chunk, transcript.HeaderStdoutEnd: &stdout, transcript.HeaderStderrEnd: &stderr} {
		n, err := strconv.ParseUint(h.Get(k), 10, 64)
		if err != nil {
			return p, fmt.Errorf("chunk at %d: header %s: %w", seq, k, err)
		}
		*v = n
	}
	var st relayState
	if err := json.Unmarshal([]byte(h.Get(HeaderState)), &st); err != nil {
		return p, fmt.Errorf("chunk at %d: header %s: %w", seq, HeaderState, err)
	}
	if err := errors.Join(p.stdout.restore(stdout, st.Stdout), p.stderr.restore(stderr, st.Stderr)); err != nil {
		return p, fmt.Errorf("chunk at %d: header %s: %w", seq, HeaderState, err)
	}
	return p, nil
}
