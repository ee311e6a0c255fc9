// Package audit makes tampering with the log visible to whoever holds a public key, and says where it is.
//
// Each event's digest covers the one before it in its aggregate (package envelope). Over all events, in the order of the stream, stands
// one Merkle tree (RFC 6962 with SHA-256) whose leaves are their places and digests; its root is signed from time to time, and what was
// signed is an event of the log again. So one signature covers every aggregate's head and everything that led to it, and one event
// can be shown to be part of it without showing any other.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Entry is a message of the log as it stands there.
type Entry struct {
	Subject string
	// Seq is the stream sequence, from 1.
	Seq uint64
	// Stored is when the stream took it, in Unix nanoseconds. Nothing covers it: it is the server's, not a fact.
	Stored int64
	// Headers are the block of headers, "NATS/1.0" and its end included; "" where there are none.
	Headers string
	Data    []byte
}

// maxEntry bounds subject, headers and body of an entry each, in bytes: the log takes none larger.
const maxEntry = eventlog.MaxEventSize

// Source gives entries in the order of the log.
type Source interface {
	// Next gives some entries, io.EOF behind the last one. They are the caller's to keep.
	Next(ctx context.Context) ([]Entry, error)
	// Close frees what the source holds; it may be called twice.
	Close()
}

// Opener opens a source at a sequence, or the first one behind it. Where it can it gives only entries of the subjects; none are all.
type Opener func(ctx context.Context, from uint64, subjects ...string) (Source, error)

// Each gives every entry of a source to fn, until its end or until fn fails, and closes it.
func Each(ctx context.Context, s Source, fn func(*Entry) error) error {
	defer s.Close()
	for {
		batch, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range batch {
			if err := fn(&batch[i]); err != nil {
				return err
			}
		}
	}
}

// Leaf is the hash of an event's leaf: SHA-256 of a zero byte, the sequence (8 bytes, big-endian), the length of the subject (2 bytes),
// the subject, and the digest as its header has it.
func Leaf(seq uint64, subject, digest string) []byte {
	var room [512]byte
	b := binary.BigEndian.AppendUint64(room[:1], seq)
	b = binary.BigEndian.AppendUint16(b, uint16(min(len(subject), 1<<16-1))) //nolint:gosec // bounded
	b = append(append(b, subject...), digest...)
	sum := sha256.Sum256(b)
	return sum[:]
}

// isCheckpoint reports whether a subject is where signed checkpoints stand.
func isCheckpoint(s string) bool {
	return strings.HasPrefix(s, "evt."+subject.NoTenant+"."+string(subject.KindLog)+".")
}
