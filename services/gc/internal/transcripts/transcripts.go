// Package transcripts shares the room of stream OUT between tenants: before it is full, who takes up most gives up its oldest
// transcripts. The stream by itself would give up its oldest messages whosever they are, so that one tenant's flood would cost the
// others theirs.
package transcripts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Options of a Keeper; zero values are the defaults named.
type Options struct {
	// High is the part of the stream's room from which on transcripts are given up (0.85), Low the part down to which (0.75). What is
	// left above High must hold what comes in between two looks.
	High, Low float64
	// TenantBytes is the most that one tenant may take up, whatever room there is; 0 is no bound.
	TenantBytes uint64
	Log         *slog.Logger
}

const (
	// overhead is about what a chunk takes up beside its bytes: subject, headers, record.
	overhead = 700
	// keepChunks of an exec that runs stay: the last one says where its relay goes on.
	keepChunks = 16
	// purgeChunks are removed at one go, at most 64 MiB.
	purgeChunks = 256
	// maxEvictions bounds one look; the next one goes on.
	maxEvictions = 2000
)

// Evicted is a transcript that was given up.
type Evicted struct {
	Tenant, Sandbox, Exec string
	// Bytes is about what it took up. Running: its last chunks are still there.
	Bytes   uint64
	Running bool
}

// Keeper looks after the room of stream OUT. Several may do so at once: they choose alike, and giving up twice is giving up once.
type Keeper struct {
	js   jetstream.JetStream
	opts Options
	// seen is the last sequence of the last look at the tenants' bounds.
	seen uint64
}

// New makes a keeper.
func New(js jetstream.JetStream, o Options) *Keeper {
	o.High, o.Low = cmp.Or(o.High, 0.85), cmp.Or(o.Low, 0.75)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{js: js, opts: o}
}

// Look gives up what is too much now. It costs one request while there is room. What it returns is given up also where an error tells
// that more would have to be.
func (k *Keeper) Look(ctx context.Context) ([]Evicted, error) {
	out, err := k.js.Stream(ctx, topology.StreamOutput)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", topology.StreamOutput, err)
	}
	info := out.CachedInfo()
	target := k.target(info)
	bounded := k.opts.TenantBytes > 0 && info.State.Bytes > k.opts.TenantBytes && info.State.LastSeq != k.seen
	if target == 0 && !bounded {
		return nil, nil
	}
	tenants, err := k.measure(ctx, out)
	if err != nil {
		return nil, err
	}
	evicted, err := k.evict(ctx, out, tenants, target)
	if err == nil {
		k.seen = info.State.LastSeq
	}
	for _, e := range evicted {
		k.opts.Log.Info("transcript given up", "tenant", e.Tenant, "sandbox", e.Sandbox, "exec", e.Exec, "bytes", e.Bytes, "running", e.Running)
	}
	return evicted, err
}

// target is how many bytes must go so that there is room for what comes; 0 while there is enough.
func (k *Keeper) target(info *jetstream.StreamInfo) uint64 {
	room := float64(info.Config.MaxBytes)
	if room <= 0 || float64(info.State.Bytes) < k.opts.High*room {
		return 0
	}
	return info.State.Bytes - uint64(k.opts.Low*room)
}

// stored is one transcript as it stands in OUT.
type stored struct {
	Evicted
	subject string
	chunks  uint64
	// at is when the exec ended, or began where it runs.
	at time.Time
}

// tenant is what one tenant takes up.
type tenant struct {
	name  string
	bytes uint64
	// ended and running transcripts, those to go first at the end.
	ended, running []*stored
}

// evict gives up transcripts of the largest tenants until target bytes are gone and nobody is over its bound.
func (k *Keeper) evict(ctx context.Context, out jetstream.Stream, tenants []*tenant, target uint64) (gone []Evicted, err error) {
	for freed := uint64(0); len(gone) < maxEvictions; {
		victim := largest(tenants)
		if victim == nil || freed >= target && (k.opts.TenantBytes == 0 || victim.bytes <= k.opts.TenantBytes) {
			return gone, nil
		}
		t := victim.next()
		if err := t.purge(ctx, out); err != nil {
			return gone, fmt.Errorf("give up transcript %s: %w", t.subject, err)
		}
		victim.bytes -= min(victim.bytes, t.Bytes)
		freed += t.Bytes
		gone = append(gone, t.Evicted)
	}
	return gone, nil
}

// purge removes the transcript, of one that runs all but its last chunks, from its beginning on and not at one go: the stream takes
// nothing in while it removes.
func (t *stored) purge(ctx context.Context, out jetstream.Stream) error {
	end := uint64(0)
	if t.Running {
		end = keepChunks
	}
	for keep := t.chunks; keep > end; {
		keep = max(end, keep-min(keep, purgeChunks))
		options := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(t.subject)}
		if keep > 0 {
			options = append(options, jetstream.WithPurgeKeep(keep))
		}
		if err := out.Purge(ctx, options...); err != nil {
			return err
		}
	}
	return nil
}

// largest is the tenant with the most bytes among those that can give up something; nil without one.
func largest(tenants []*tenant) *tenant {
	var most *tenant
	for _, t := range tenants {
		if len(t.ended)+len(t.running) > 0 && (most == nil || t.bytes > most.bytes) {
			most = t
		}
	}
	return most
}

// next takes out the transcript that is to go first: the one that ended longest ago, then of those that run the largest.
func (t *tenant) next() *stored {
	from := &t.ended
	if len(t.ended) == 0 {
		from = &t.running
	}
	last := (*from)[len(*from)-1]
	*from = (*from)[:len(*from)-1]
	return last
}

// measure says what each tenant takes up. How many chunks there are is the stream's to say, how large they are the receipts': so no
// output has to be read, and nothing kept in memory between two looks.
func (k *Keeper) measure(ctx context.Context, out jetstream.Stream) ([]*tenant, error) {
	info, err := out.Info(ctx, jetstream.WithSubjectFilter(subject.Outputs))
	if err != nil {
		return nil, fmt.Errorf("list transcripts: %w", err)
	}
	open := info.State.Subjects
	by := map[string]*tenant{}
	add := func(s *stored) {
		t := by[s.Tenant]
		if t == nil {
			t = &tenant{name: s.Tenant}
			by[s.Tenant] = t
		}
		t.bytes += s.Bytes
		switch {
		case !s.Running:
			t.ended = append(t.ended, s)
		case s.chunks > keepChunks:
			s.Bytes -= s.Bytes / s.chunks * keepChunks
			t.running = append(t.running, s)
		}
	}
	err = directget.Each(ctx, k.js, subject.BucketStream(topology.BucketExec), subject.BucketKeys(topology.BucketExec, ""), 1,
		func(m directget.Message) error {
			v := &commandsv1.ExecView{}
			if proto.Unmarshal(m.Data, v) != nil || v.GetState() != sandbox.ExecCompleted && v.GetState() != sandbox.ExecLost {
				return nil // its last chunk says how large it is
			}
			name := subject.Output(v.GetTenantId(), v.GetSandboxId(), v.GetExecId())
			if chunks, ok := open[name]; ok {
				delete(open, name)
				add(ended(name, chunks, v))
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	for name, chunks := range open {
		s, err := k.running(ctx, out, name, chunks)
		if err != nil {
			return nil, err
		}
		if s != nil {
			add(s)
		}
	}
	return sorted(by), nil
}

func sorted(by map[string]*tenant) []*tenant {
	var all []*tenant
	for _, t := range by {
		slices.SortFunc(t.ended, func(a, b *stored) int { return b.at.Compare(a.at) })
		slices.SortFunc(t.running, func(a, b *stored) int { return cmp.Compare(a.Bytes, b.Bytes) })
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *tenant) int { return strings.Compare(a.name, b.name) })
	return all
}

func ended(name string, chunks uint64, v *commandsv1.ExecView) *stored {
	c, l := v.GetCompleted(), v.GetLost()
	bytes := c.GetStdout().GetBytes() - c.GetStdout().GetDroppedBytes() + c.GetStderr().GetBytes() - c.GetStderr().GetDroppedBytes() +
		l.GetStdoutBytes() + l.GetStderrBytes()
	s := measured(name, chunks, bytes, max(c.GetLastChunk(), l.GetLastChunk()))
	s.at = v.GetEndedAt().AsTime()
	return s
}

// running is a transcript whose exec has no end that is known here; nil where it is gone by now.
func (k *Keeper) running(ctx context.Context, out jetstream.Stream, name string, chunks uint64) (*stored, error) {
	m, err := out.GetLastMsgForSubject(ctx, name)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last chunk: %w", err)
	}
	c, err := transcript.Decode(m.Header, nil, m.Sequence)
	if err != nil {
		// Not ours to judge; it goes with its age.
		k.opts.Log.Warn("a chunk cannot be read", "subject", name, "error", err)
		return nil, nil
	}
	s := measured(name, chunks, c.StdoutEnd+c.StderrEnd, c.Number)
	s.Running, s.at = true, m.Time
	return s, nil
}

// measured is a transcript of which chunks are there, out of all with so many bytes.
func measured(name string, chunks, bytes, all uint64) *stored {
	part := bytes
	if all > chunks {
		part = bytes / all * chunks
	}
	t := strings.Split(name, ".")
	s := &stored{subject: name, chunks: chunks}
	s.Bytes = part + chunks*overhead
	if len(t) == 4 {
		s.Tenant, s.Sandbox, s.Exec = t[1], t[2], t[3]
	}
	return s
}
