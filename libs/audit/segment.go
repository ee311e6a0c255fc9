package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// A segment is a file of some events, compressed with zstd: a first line and then for each event, each number as an unsigned varint,
//
//	sequence, time of storing, length of the subject, subject, length of the headers, headers, length of the body, body
//
// as they stand in the log.
const (
	segmentHead = "sandtrail segment 1\n"
	// segmentBytes and segmentEvents bound a segment: the first event that reaches one of them is its last.
	segmentBytes  = 8 << 20
	segmentEvents = 1 << 16
	// maxSegment bounds a segment that is read, in bytes before compression.
	maxSegment = segmentBytes + 4*maxEntry
	maxSubject = 1 << 10
)

// segment is one that is being written.
type segment struct {
	b           []byte
	events      uint64
	first, last uint64
	// most is how many events it may have.
	most uint64
}

func (s *segment) add(e *Entry) {
	if s.events == 0 {
		s.b, s.first = append(s.b[:0], segmentHead...), e.Seq
	}
	s.b = binary.AppendUvarint(s.b, e.Seq)
	s.b = binary.AppendUvarint(s.b, uint64(e.Stored)) //nolint:gosec // the bits of a time, which come back as they were
	s.b = append(binary.AppendUvarint(s.b, uint64(len(e.Subject))), e.Subject...)
	s.b = append(binary.AppendUvarint(s.b, uint64(len(e.Headers))), e.Headers...)
	s.b = append(binary.AppendUvarint(s.b, uint64(len(e.Data))), e.Data...)
	s.last = e.Seq
	s.events++
}

func (s *segment) full() bool { return len(s.b) >= segmentBytes || s.events >= s.most }

func (s *segment) clear() { s.events = 0 }

// compressor makes the same bytes of the same events each time: one goroutine, all at once.
func compressor() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(true))
}

func decompressor() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSegment))
}

// errSegment: the bytes are no segment.
var errSegment = errors.New("it is no segment of an export")

// readSegment reads what was decompressed. Entries share the memory of raw. With an error it gives what stands before the damage.
func readSegment(raw []byte) ([]Entry, error) {
	rest, ok := bytes.CutPrefix(raw, []byte(segmentHead))
	if !ok {
		return nil, errSegment
	}
	// One text for all, which their texts are parts of.
	text := string(rest)
	var all []Entry
	for at := 0; at < len(rest); {
		if len(all) == segmentEvents {
			return all, fmt.Errorf("it has more than %d events", segmentEvents)
		}
		e, n, err := readEntry(rest[at:], text[at:])
		if err != nil {
			return all, fmt.Errorf("event %d of the segment: %w", len(all)+1, err)
		}
		all = append(all, e)
		at += n
	}
	return all, nil
}

var errCut = errors.New("it ends too early or has an impossible length")

// readEntry reads one event; text is b as a string.
func readEntry(b []byte, text string) (e Entry, n int, err error) {
	number := func() (v uint64) {
		v, k := binary.Uvarint(b[n:])
		if k <= 0 {
			err = errCut
			return 0
		}
		n += k
		return v
	}
	part := func(most uint64) (from, to int) {
		size := number()
		if err != nil || size > most || size > uint64(len(b)-n) { //nolint:gosec // not negative
			err = errCut
			return 0, 0
		}
		from = n
		n += int(size) //nolint:gosec // bounded
		return from, n
	}
	e.Seq = number()
	e.Stored = int64(number()) //nolint:gosec // the bits of a time
	from, to := part(maxSubject)
	e.Subject = text[from:to]
	from, to = part(maxEntry)
	e.Headers = text[from:to]
	from, to = part(maxEntry)
	e.Data = b[from:to:to]
	return e, n, err
}
