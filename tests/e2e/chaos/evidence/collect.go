package evidence

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/subject"
)

// Sources are where evidence is collected from.
type Sources struct {
	JS jetstream.JetStream
	// ClickHouse is the URL of its HTTP listener; empty: rows are not collected.
	ClickHouse string
	// StateDirs by worker, on this host.
	StateDirs map[string]string
	Limits    Limits
	// Faults, Appends and Samples go into the evidence as they are.
	Faults  []Fault
	Appends []AppendHistory
	Samples []Sample
	// Witnesses that were read already; a workspace may be gone by now. The others are read from the workspaces.
	Witnesses []Witness
}

// Settle is how long log, hosts, views and rows may disagree unless Limits say otherwise.
const Settle = 30 * time.Second

// Collect waits until open, which names what does not agree yet, names nothing, for at most Limits.Settle, and collects
// everything then, agreed or not. How long it took is in the evidence. A source that does not answer is asked again within that
// time.
func Collect(ctx context.Context, from Sources, open func(Evidence) []string) (Evidence, error) {
	log := NewLog(from.JS)
	begin := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		e, err := look(ctx, log, from)
		took := time.Since(begin)
		late := took >= cmp.Or(from.Limits.Settle, Settle)
		if err != nil && late {
			return e, err
		}
		var left []string
		if err == nil {
			left = open(e)
		}
		if err == nil && (late || len(left) == 0) {
			e.Settled = &Settling{Took: took, Agreed: len(left) == 0, Open: left}
			return rest(ctx, log, from, e)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return e, fmt.Errorf("collect evidence: %w", ctx.Err())
		}
	}
}

// look collects what may still change: hosts first, so that whatever was found there the log knows by the time that it is read.
func look(ctx context.Context, log *Log, from Sources) (Evidence, error) {
	e := Evidence{Limits: from.Limits, Faults: from.Faults, Appends: from.Appends, Samples: from.Samples, Hosts: []Host{}}
	before, err := log.Events(ctx)
	if err != nil {
		return e, err
	}
	for worker, dir := range from.StateDirs {
		h, err := LookAtHost(worker, dir, placed(before))
		if err != nil {
			return e, err
		}
		e.Hosts = append(e.Hosts, h)
	}
	slices.SortFunc(e.Hosts, func(a, b Host) int { return cmp.Compare(a.Worker, b.Worker) })
	if from.ClickHouse != "" {
		if e.Execs, e.Sandboxes, err = ReadRows(ctx, from.ClickHouse); err != nil {
			return e, err
		}
		if e.Hours, err = ReadHours(ctx, from.ClickHouse); err != nil {
			return e, err
		}
	}
	if e.Buckets, err = log.Entries(ctx); err != nil {
		return e, err
	}
	// Before the commands: one that is done with by now may still be counted as waiting, never the other way round.
	if e.Consumers, err = log.Consumers(ctx); err != nil {
		return e, err
	}
	if e.Pending, err = log.Pending(ctx); err != nil {
		return e, err
	}
	if e.Events, err = log.Events(ctx); err != nil {
		return e, err
	}
	e.Taken = time.Now().UTC()
	return e, nil
}

// rest collects what does not change any more.
func rest(ctx context.Context, log *Log, from Sources, e Evidence) (Evidence, error) {
	var err error
	if e.Transcripts, err = log.Transcripts(ctx); err != nil {
		return e, err
	}
	if e.Dead, err = log.Dead(ctx); err != nil {
		return e, err
	}
	e.Witnesses = append([]Witness{}, from.Witnesses...)
	known := map[string]bool{}
	for _, w := range e.Witnesses {
		known[w.Sandbox] = true
	}
	for _, h := range e.Hosts {
		for _, id := range placed(e.Events) {
			if known[id] {
				continue
			}
			w, ok, err := h.witness(ctx, id)
			if err != nil {
				return e, err
			}
			if ok {
				known[id] = true
				e.Witnesses = append(e.Witnesses, w)
			}
		}
	}
	return e, nil
}

// placed are the sandboxes that the log knows, in the order of their first events.
func placed(events []Event) []string {
	var ids []string
	seen := map[string]bool{}
	for _, e := range events {
		agg, err := subject.ParseEvent(e.Subject)
		if err == nil && agg.Kind == subject.KindSandbox && !seen[agg.ID] {
			seen[agg.ID] = true
			ids = append(ids, agg.ID)
		}
	}
	return ids
}
