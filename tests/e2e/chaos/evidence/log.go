package evidence

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Buckets are all buckets there are.
func Buckets() []string {
	return []string{
		topology.BucketSandbox, topology.BucketExec, topology.BucketIdem, topology.BucketName, topology.BucketWorker, topology.BucketLease,
		topology.BucketPlace, topology.BucketCheckpoint, topology.BucketKey, topology.BucketQuota,
	}
}

// Log reads what NATS holds. One Log reads each event once, however often it is asked.
type Log struct {
	js     jetstream.JetStream
	events []Event
}

// NewLog reads from a JetStream.
func NewLog(js jetstream.JetStream) *Log { return &Log{js: js} }

// Decode gives the event as the services read it.
func (e Event) Decode() (envelope.Recorded, error) {
	return envelope.Decode(e.Subject, e.Seq, nats.Header(e.Header), e.Data)
}

// Events are all of stream EVT up to now. It tries again until there are as many as the stream's leader has: another replica may
// lag. The slice is shared with later calls: read only.
func (l *Log) Events(ctx context.Context) ([]Event, error) {
	stream, err := l.js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	err = l.again(ctx, func() error {
		from := uint64(1)
		if n := len(l.events); n > 0 {
			from = l.events[n-1].Seq + 1
		}
		err := directget.Each(ctx, l.js, topology.StreamEvents, subject.Events, from, func(m directget.Message) error {
			l.events = append(l.events, Event{Seq: m.Seq, Subject: m.Subject, Header: own(m.Header), Data: m.Data, Stored: storedAt(m)})
			return nil
		})
		if err != nil {
			return err
		}
		info, err := stream.Info(ctx)
		if err == nil && info.State.Msgs > uint64(len(l.events)) {
			err = fmt.Errorf("%d of %d events came", len(l.events), info.State.Msgs)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	return slices.Clip(l.events), nil
}

// again tries until do succeeds or ctx ends, and gives the last error then.
func (l *Log) again(ctx context.Context, do func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// transport are the headers that a direct get adds.
var transport = []string{
	jetstream.StreamHeader, jetstream.SubjectHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer, "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence",
}

// own are the headers that a message was stored with.
func own(h nats.Header) map[string][]string {
	out := map[string][]string{}
	for k, v := range h {
		if !slices.Contains(transport, k) {
			out[k] = v
		}
	}
	return out
}

func storedAt(m directget.Message) time.Time {
	t, err := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return time.Time{}
	}
	return t
}

// Transcripts are all of stream OUT, by exec in the order of their subjects.
func (l *Log) Transcripts(ctx context.Context) ([]Transcript, error) {
	all := map[string]*recording{}
	err := directget.Each(ctx, l.js, topology.StreamOutput, subject.Outputs, 1, func(m directget.Message) error {
		r, ok := all[m.Subject]
		if !ok {
			parts := strings.Split(m.Subject, ".")
			if len(parts) != 4 {
				return fmt.Errorf("%q is not the subject of a transcript", m.Subject)
			}
			r = &recording{Transcript: Transcript{Tenant: parts[1], Sandbox: parts[2], Exec: parts[3], Chunks: []journal.Piece{}}, stdout: sha256.New(), stderr: sha256.New()}
			all[m.Subject] = r
		}
		c, err := transcript.Decode(m.Header, m.Data, m.Seq)
		if err != nil {
			return err
		}
		r.add(c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the transcripts: %w", err)
	}
	out := []Transcript{}
	for _, r := range all {
		r.Stdout.SHA256, r.Stderr.SHA256 = hex.EncodeToString(r.stdout.Sum(nil)), hex.EncodeToString(r.stderr.Sum(nil))
		out = append(out, r.Transcript)
	}
	slices.SortFunc(out, func(a, b Transcript) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.Exec, b.Exec))
	})
	return out, nil
}

// recording is a transcript while it is read.
type recording struct {
	Transcript
	last           uint64
	stdout, stderr hash.Hash
}

func (r *recording) add(c transcript.Chunk) {
	p := journal.Piece{Number: c.Number, Stream: c.Stream, From: c.Offset, To: c.Offset + uint64(len(c.Data))}
	if c.GapTo > 0 {
		p.To, p.Gap = c.GapTo, true
	} else {
		sum := sha256.Sum256(c.Data)
		p.SHA256 = hex.EncodeToString(sum[:])
	}
	r.Chunks = append(r.Chunks, p)
	if c.Number <= r.last {
		return
	}
	r.last = c.Number
	to, sum := &r.Stdout, r.stdout
	if c.Stream == transcript.Stderr {
		to, sum = &r.Stderr, r.stderr
	}
	to.Bytes += p.To - p.From
	if p.Gap {
		to.Dropped += p.To - p.From
	}
	sum.Write(c.Data)
}

// Entries are the present entries of every bucket. Those that hold sealed or hashed things are read too: none is a secret.
func (l *Log) Entries(ctx context.Context) (map[string]map[string]Value, error) {
	out := map[string]map[string]Value{}
	for _, bucket := range Buckets() {
		entries := map[string]Value{}
		prefix := strings.TrimSuffix(subject.BucketKeys(bucket, ""), ">")
		err := directget.Each(ctx, l.js, subject.BucketStream(bucket), subject.BucketKeys(bucket, ""), 1, func(m directget.Message) error {
			key := strings.TrimPrefix(m.Subject, prefix)
			if m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != "" {
				delete(entries, key)
				return nil
			}
			entries[key] = Value{Revision: m.Seq, Created: storedAt(m), Data: m.Data}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read bucket %s: %w", bucket, err)
		}
		out[bucket] = entries
	}
	return out, nil
}

// Pending are the commands that stand in CMD.
func (l *Log) Pending(ctx context.Context) ([]Message, error) {
	return l.messages(ctx, topology.StreamCommands, subject.Commands)
}

// Consumers are those of stream CMD.
func (l *Log) Consumers(ctx context.Context) ([]Consumer, error) {
	stream, err := l.js.Stream(ctx, topology.StreamCommands)
	if err != nil {
		return nil, fmt.Errorf("read the consumers of commands: %w", err)
	}
	out := []Consumer{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		filters := info.Config.FilterSubjects
		if info.Config.FilterSubject != "" {
			filters = []string{info.Config.FilterSubject}
		}
		out = append(out, Consumer{Name: info.Name, Filters: filters, Acknowledged: info.AckFloor.Stream})
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("read the consumers of commands: %w", err)
	}
	slices.SortFunc(out, func(a, b Consumer) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Dead are the dead letters.
func (l *Log) Dead(ctx context.Context) ([]Message, error) {
	return l.messages(ctx, topology.StreamDead, subject.Dead)
}

func (l *Log) messages(ctx context.Context, stream, filter string) ([]Message, error) {
	out := []Message{}
	err := directget.Each(ctx, l.js, stream, filter, 1, func(m directget.Message) error {
		out = append(out, Message{Seq: m.Seq, Subject: m.Subject, Header: own(m.Header), Stored: storedAt(m)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	return out, nil
}
