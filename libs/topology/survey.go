package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Kind of a Thing.
type Kind string

// Kinds.
const (
	KindStream   Kind = "stream"
	KindBucket   Kind = "bucket"
	KindConsumer Kind = "consumer"
)

// State of a Thing on the server.
type State string

// States.
const (
	// Same: as it should be. Missing and Different: Apply makes or changes it. Refused: different, and the change would remove what is
	// stored, or the server does not make it.
	Same      State = "same"
	Missing   State = "missing"
	Different State = "different"
	Refused   State = "refused"
	// Unknown: it is there and nothing here declares it. It is left alone.
	Unknown State = "unknown"
	// Made and Changed are what Apply did.
	Made    State = "made"
	Changed State = "changed"
)

// Thing is a stream, bucket or consumer: as it is declared, compared with what is on the server.
type Thing struct {
	Kind Kind
	Name string
	// Stream that a consumer belongs to; empty for the others.
	Stream string
	State  State
	// Differences are those of a Different or Refused thing, and of a Changed one those that there were.
	Differences []Difference
	// Why it is Refused, in a sentence.
	Why string
}

// Settled reports that there is nothing to be done about it.
func (t Thing) Settled() bool {
	return t.State != Missing && t.State != Different && t.State != Refused
}

// Survey compares all that is declared with what is on the server, and changes nothing: streams, buckets, shared consumers, and the
// consumers of the named workers and of those that have one there already. Behind them stand the things that are there and not
// declared: streams, and consumers of declared streams.
func Survey(ctx context.Context, js jetstream.JetStream, o Options, workers ...string) ([]Thing, error) {
	return survey(ctx, js, o, workers, nil)
}

// Apply makes and changes what Survey finds missing or different, as Ensure and EnsureWorker do, and says of each thing what became of
// it. One that is refused does not keep it from the others.
func Apply(ctx context.Context, js jetstream.JetStream, o Options, workers ...string) ([]Thing, error) {
	return survey(ctx, js, o, workers, func(ensure func() error) error { return ensure() })
}

// surveyor looks at things one by one. apply makes a change; without it nothing is changed.
type surveyor struct {
	apply func(ensure func() error) error
	all   []Thing
}

func survey(ctx context.Context, js jetstream.JetStream, o Options, workers []string, apply func(func() error) error) ([]Thing, error) {
	o = o.withDefaults()
	for _, w := range workers {
		if !subject.ValidToken(w) {
			return nil, fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "%q is not a worker name: 1 to 64 of A-Z a-z 0-9 _ -", w)
		}
	}
	s := &surveyor{apply: apply}
	for _, want := range streams(o) {
		found, info, err := diffStream(ctx, js, want)
		if err != nil {
			return nil, err
		}
		var refusal error
		if info != nil && len(found) > 0 {
			refusal = refuseLoss(want, info)
		}
		if err := s.add(Thing{Kind: KindStream, Name: want.Name, Differences: found}, refusal, func() error { return ensureStream(ctx, js, want) }); err != nil {
			return nil, err
		}
	}
	for _, want := range buckets(o) {
		found, status, err := diffBucket(ctx, js, want)
		if err != nil {
			return nil, err
		}
		var refusal error
		if status != nil && len(found) > 0 {
			refusal = refuseEntries(want, status)
		}
		if err := s.add(Thing{Kind: KindBucket, Name: want.Bucket, Differences: found}, refusal, func() error { return ensureBucket(ctx, js, want) }); err != nil {
			return nil, err
		}
	}
	there, err := consumersThere(ctx, js)
	if err != nil {
		return nil, err
	}
	want := consumers()
	for _, w := range withWorkers(workers, there) {
		want = append(want, workerConsumers(w)...)
	}
	for _, c := range want {
		found, err := diffConsumers(ctx, js, nil, []consumer{c})
		if err != nil {
			return nil, err
		}
		t := Thing{Kind: KindConsumer, Name: c.config.Durable, Stream: c.stream, Differences: found}
		if err := s.add(t, nil, func() error { return ensureConsumer(ctx, js, c) }); err != nil {
			return nil, err
		}
	}
	return s.unknown(ctx, js, there)
}

// add judges a thing by its differences. An error is one after which nothing more can be learnt.
func (s *surveyor) add(t Thing, refusal error, ensure func() error) error {
	switch {
	case len(t.Differences) == 0:
		t.State = Same
	case refusal != nil:
		t.State, t.Why = Refused, fault.From(refusal).Message
	case t.Differences[0].missing():
		t.State = Missing
	default:
		t.State = Different
	}
	if s.apply != nil && (t.State == Missing || t.State == Different) {
		err := s.apply(ensure)
		var told *jetstream.APIError
		switch {
		case err == nil && t.State == Missing:
			t.State = Made
		case err == nil:
			t.State = Changed
		case errors.As(err, &told):
			t.State, t.Why = Refused, "the server says: "+told.Description
		case fault.From(err).Code == fault.FailedPrecondition:
			t.State, t.Why = Refused, fault.From(err).Message
		default:
			return fmt.Errorf("ensure %s %s: %w", t.Kind, t.Name, err)
		}
	}
	s.all = append(s.all, t)
	return nil
}

// there is a consumer on the server.
type there struct{ stream, name string }

// consumersThere are the durable consumers of the declared streams.
func consumersThere(ctx context.Context, js jetstream.JetStream) ([]there, error) {
	var all []there
	for _, c := range streams(Options{}) {
		s, err := js.Stream(ctx, c.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", c.Name, err)
		}
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			// What is not durable belongs to a reader and goes with it.
			if info.Config.Durable != "" {
				all = append(all, there{c.Name, info.Config.Durable})
			}
		}
		if err := list.Err(); err != nil {
			return nil, fmt.Errorf("list the consumers of %s: %w", c.Name, err)
		}
	}
	return all, nil
}

// withWorkers adds the workers that have a consumer to the named ones; sorted, each once.
func withWorkers(named []string, have []there) []string {
	all := slices.Clone(named)
	for _, h := range have {
		for _, name := range []func(string) string{ConsumerWorker, ConsumerExec} {
			before, behind, _ := strings.Cut(name("*"), "*")
			worker, ok := strings.CutPrefix(h.name, before)
			worker, whole := strings.CutSuffix(worker, behind)
			if ok && whole && h.stream == StreamCommands && subject.ValidToken(worker) {
				all = append(all, worker)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// unknown adds what is there and not declared.
func (s *surveyor) unknown(ctx context.Context, js jetstream.JetStream, have []there) ([]Thing, error) {
	declared := Streams()
	list := js.ListStreams(ctx)
	var names []string
	for info := range list.Info() {
		if !slices.Contains(declared, info.Config.Name) {
			names = append(names, info.Config.Name)
		}
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	slices.Sort(names)
	for _, n := range names {
		s.all = append(s.all, Thing{Kind: KindStream, Name: n, State: Unknown})
	}
	for _, h := range have {
		known := slices.ContainsFunc(s.all, func(t Thing) bool { return t.Kind == KindConsumer && t.Stream == h.stream && t.Name == h.name })
		if !known {
			s.all = append(s.all, Thing{Kind: KindConsumer, Name: h.name, Stream: h.stream, State: Unknown})
		}
	}
	return s.all, nil
}
