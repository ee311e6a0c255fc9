package figure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	// auditedEvents is how many events an export has that is verified.
	auditedEvents = 200_000
	// auditedAtLeast is the rate that a verification must have, in events/s.
	auditedAtLeast = 200_000
)

// audited measures how fast the log is verified, offline and from a server, against what the server gives to a plain reader.
func audited(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	dir, err := os.MkdirTemp("", "sandtrail-bench-audit-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	n := b.count(auditedEvents)
	b.say("audit: %d events", n)
	if err := s.fill(n, func(int) (subject.Aggregate, envelope.Event) { return newExec(), completed() }); err != nil {
		return nil, err
	}
	signer, err := audit.LoadSigner(dir + "/key.pem")
	if err != nil {
		return nil, err
	}
	keys := audit.Keys{signer.Public()}
	begin := time.Now()
	if _, err := (audit.Writer{JS: s.js, Log: jslog.New(s.js), Signer: signer, Actor: "bench", Now: time.Now}).Sign(ctx); err != nil {
		return nil, err
	}
	signing := float64(n) / time.Since(begin).Seconds()
	log, err := audit.OpenLog(ctx, s.js)
	if err != nil {
		return nil, err
	}
	begin = time.Now()
	x := audit.Export{Dir: dir + "/export", LogID: log.ID, To: log.LastSeq}
	if _, err := x.Run(ctx, log.Open); err != nil {
		return nil, err
	}
	exporting := float64(n) / time.Since(begin).Seconds()
	var offline, online, plain sample.Values
	for range b.Runs + 1 {
		took, err := check(ctx, audit.FromExport(x.Dir, nil), keys, n)
		if err != nil {
			return nil, err
		}
		offline.Add(float64(n) / took.Seconds())
		if took, err = check(ctx, log.Open, keys, n); err != nil {
			return nil, err
		}
		online.Add(float64(n) / took.Seconds())
		if took, err = consume(ctx, s, subject.Events, n); err != nil {
			return nil, err
		}
		plain.Add(float64(n) / took.Seconds())
	}
	const against = "nats.go ordered consumer of the same events, nothing decoded"
	return []report.Row{
		{
			Name: "audit: verify an export", Unit: "events/s", Ours: offline[1:].Median(), Baseline: plain[1:].Median(), Against: against, Samples: len(offline) - 1,
			Target: report.AtLeast(auditedAtLeast), Note: fmt.Sprintf("%d events of as many aggregates. It decompresses, checks the digest of each event, its place in its aggregate, the tree and the signatures.", n),
		},
		{
			Name: "audit: verify the log on a server", Unit: "events/s", Ours: online[1:].Median(), Baseline: plain[1:].Median(), Against: against, Samples: len(online) - 1,
			Target: report.RatioAtLeast(0.7), Note: "The server runs in the same process, on the same processors.",
		},
		{Name: "audit: sign a log for the first time", Unit: "events/s", Ours: signing, Baseline: report.None, Samples: 1, Note: "In steps of 200,000 events; later only what is new is read."},
		{Name: "audit: export", Unit: "events/s", Ours: exporting, Baseline: report.None, Samples: 1},
	}, nil
}

// check is the time of one verification.
func check(ctx context.Context, open audit.Opener, keys audit.Keys, n int) (time.Duration, error) {
	begin := time.Now()
	s, err := open(ctx, 1)
	if err != nil {
		return 0, err
	}
	v := audit.NewVerifier(audit.Options{Keys: keys})
	defer v.Close()
	r, err := audit.Verify(ctx, s, v)
	if err != nil {
		return 0, err
	}
	if !r.OK() || r.Events < uint64(n) || r.Checkpoints == 0 { //nolint:gosec // a count
		return 0, fmt.Errorf("%d events of %d, %d checkpoints, findings %v", r.Events, n, r.Checkpoints, r.Total)
	}
	return time.Since(begin), nil
}
