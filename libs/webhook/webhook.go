// Package webhook decides about the endpoints that tenants have their events sent to, and says from their events which there are. It is
// pure but for NewSecret: time and ids come in with the commands. Messages are signed as Standard Webhooks has it.
package webhook

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// MaxDescription and MaxNote bound texts, in bytes.
	MaxDescription = 256
	MaxNote        = 1024
	// MaxEvents bounds what a tenant may add to an endpoint's history: behind it no Rotate, Replay and Test is accepted, so that there is room for
	// its end. The log reads no history of more than 100,000.
	MaxEvents = 50_000
	// MaxOverlap bounds how long a secret that was replaced still signs.
	MaxOverlap = 7 * 24 * time.Hour
)

// Sealed is a secret as the log has it.
type Sealed struct {
	ID    string
	Bytes []byte
	// Until is from when on it does not sign; zero: it does.
	Until time.Time
}

// Endpoint is where a tenant has events sent, as its events tell it.
type Endpoint struct {
	Tenant, ID, URL, Description string
	Filter                       events.Filter
	// Secrets, newest first, at most two.
	Secrets   []Sealed
	CreatedAt time.Time
	// After is behind which sequence it begins.
	After uint64
	// ReplayFrom is the sequence that was last asked to be replayed from, ReplaySeq that of the request; 0: nobody has.
	ReplayFrom, ReplaySeq uint64
	// TestID is the event of the last test that was asked for, TestSeq its sequence, Tested what came of it.
	TestID  string
	TestSeq uint64
	Tested  *eventsv1.WebhookTested
	// Disabled is why nothing is sent; empty: it is.
	Disabled string
	Deleted  bool
	// Seq is the stream sequence of its last event, Events how many it has.
	Seq    uint64
	Events int
}

// Exists reports whether it was created and not deleted.
func (p Endpoint) Exists() bool { return !p.CreatedAt.IsZero() && !p.Deleted }

// Active reports whether events are sent to it.
func (p Endpoint) Active() bool { return p.Exists() && p.Disabled == "" }

// Wants reports whether an event is sent to it. What happens to endpoints themselves, to dead letters and to the log is not: each
// message that fails would make another.
func (p Endpoint) Wants(agg subject.Aggregate, fullType string) bool {
	switch agg.Kind {
	case subject.KindWebhook, subject.KindLetter, subject.KindLog:
		return false
	}
	return agg.Tenant == p.Tenant && p.Filter.Matches(agg, fullType)
}

// State in one word: active, disabled or deleted.
func (p Endpoint) State() string {
	switch {
	case p.Deleted:
		return "deleted"
	case p.Disabled != "":
		return "disabled"
	default:
		return "active"
	}
}

// Fold makes the state from a history. Events of types that this version does not know are left out.
func Fold(h eventlog.History) Endpoint {
	p := Endpoint{Tenant: h.Aggregate.Tenant, ID: h.Aggregate.ID}
	for _, e := range h.Events {
		p = p.Evolve(e)
	}
	return p
}

// Evolve is the state behind e. p is left as it is.
func (p Endpoint) Evolve(e envelope.Recorded) Endpoint {
	p.Seq, p.Events = e.Seq, p.Events+1
	switch b := e.Body.(type) {
	case *eventsv1.WebhookCreated:
		p.URL, p.Description, p.After, p.CreatedAt = b.GetUrl(), b.GetDescription(), b.GetAfterSequence(), e.Time
		p.Filter = filterOf(p.Tenant, b.GetFilter())
		p.Secrets = []Sealed{{ID: b.GetSecretId(), Bytes: b.GetSealedSecret()}}
	case *eventsv1.WebhookRotated:
		fresh := []Sealed{{ID: b.GetSecretId(), Bytes: b.GetSealedSecret()}}
		if until := b.GetPreviousUntil(); until != nil && len(p.Secrets) > 0 {
			old := p.Secrets[0]
			old.Until = until.AsTime()
			fresh = append(fresh, old)
		}
		p.Secrets = fresh
	case *eventsv1.WebhookReplayRequested:
		p.ReplayFrom, p.ReplaySeq, p.Disabled = b.GetFromSequence(), e.Seq, ""
	case *eventsv1.WebhookTestRequested:
		p.TestID, p.TestSeq, p.Tested = e.ID, e.Seq, nil
	case *eventsv1.WebhookTested:
		if b.GetTestId() == p.TestID {
			p.Tested = b
		}
	case *eventsv1.WebhookDisabled:
		p.Disabled = b.GetReason()
	case *eventsv1.WebhookDeleted:
		p.Deleted, p.Secrets = true, nil
	}
	return p
}

func filterOf(tenant string, f *eventsv1.EventFilter) events.Filter {
	out := events.Filter{Tenant: tenant, Sandbox: f.GetSandboxId(), Types: f.GetTypes()}
	for _, k := range f.GetKinds() {
		out.Kinds = append(out.Kinds, subject.Kind(k))
	}
	return out
}

// Command is one of the structs below.
type Command interface {
	decide(p Endpoint) ([]proto.Message, error)
}

// Create makes an endpoint. One that is there stays as it is.
type Create struct {
	URL, Description string
	Filter           events.Filter
	Sealed           []byte
	SecretID         string
	After            uint64
	Guard            Guard
}

// Rotate gives it a new secret; the one before signs as well until PreviousUntil, not at all where that is zero.
type Rotate struct {
	Sealed        []byte
	SecretID      string
	At            time.Time
	PreviousUntil time.Time
}

// Delete ends it. One that is deleted stays so.
type Delete struct{ Note string }

// Replay sends everything from a sequence on again.
type Replay struct {
	From uint64
	Note string
}

// Test sends one message.
type Test struct{}

// Record says what came of a test. One that is not the last is let be.
type Record struct{ Tested *eventsv1.WebhookTested }

// Disable stops sending. One that is disabled stays as it is.
type Disable struct{ Reason string }

// Decide says what a command leads to, or why it is refused: fault.NotFound for an endpoint that is not there.
func Decide(p Endpoint, c Command) ([]proto.Message, error) { return c.decide(p) }

func (c Create) decide(p Endpoint) ([]proto.Message, error) {
	fields := map[string]string{}
	if wrong := c.Guard.URL(c.URL); wrong != "" {
		fields["url"] = wrong
	}
	if len(c.Description) > MaxDescription {
		fields["description"] = "is too long"
	}
	if len(c.Sealed) == 0 {
		fields["secret"] = "is missing"
	}
	if len(fields) > 0 {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the endpoint is not valid").WithFields(fields)
	}
	c.Filter.Tenant = p.Tenant
	if err := c.Filter.Validate(); err != nil || !p.CreatedAt.IsZero() {
		return nil, err
	}
	f := &eventsv1.EventFilter{Types: c.Filter.Types, SandboxId: c.Filter.Sandbox}
	for _, k := range c.Filter.Kinds {
		f.Kinds = append(f.Kinds, string(k))
	}
	return one(&eventsv1.WebhookCreated{
		WebhookId: p.ID, Url: c.URL, Filter: f, SealedSecret: c.Sealed, SecretId: c.SecretID, AfterSequence: c.After, Description: c.Description,
	})
}

func (c Rotate) decide(p Endpoint) ([]proto.Message, error) {
	switch {
	case !p.Exists():
		return nil, notFound(p.ID)
	case len(c.Sealed) == 0 || c.PreviousUntil.Sub(c.At) > MaxOverlap:
		return nil, invalid("overlap", "is at most "+MaxOverlap.String())
	case p.Secrets[0].ID == c.SecretID:
		return nil, nil
	case p.Events >= MaxEvents:
		return nil, tooMany(p.ID)
	}
	e := &eventsv1.WebhookRotated{SealedSecret: c.Sealed, SecretId: c.SecretID}
	if c.PreviousUntil.After(c.At) {
		e.PreviousUntil = timestamppb.New(c.PreviousUntil)
	}
	return one(e)
}

func (c Delete) decide(p Endpoint) ([]proto.Message, error) {
	switch {
	case p.CreatedAt.IsZero():
		return nil, notFound(p.ID)
	case len(c.Note) > MaxNote:
		return nil, invalid("note", "is too long")
	case p.Deleted:
		return nil, nil
	}
	return one(&eventsv1.WebhookDeleted{Note: c.Note})
}

func (c Replay) decide(p Endpoint) ([]proto.Message, error) {
	switch {
	case !p.Exists():
		return nil, notFound(p.ID)
	case c.From == 0:
		return nil, invalid("from", "is a sequence from 1")
	case len(c.Note) > MaxNote:
		return nil, invalid("note", "is too long")
	case p.Events >= MaxEvents:
		return nil, tooMany(p.ID)
	}
	return one(&eventsv1.WebhookReplayRequested{FromSequence: c.From, Note: c.Note})
}

func (Test) decide(p Endpoint) ([]proto.Message, error) {
	switch {
	case !p.Exists():
		return nil, notFound(p.ID)
	case !p.Active():
		return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "webhook %s is disabled (%s); replay enables it", p.ID, p.Disabled)
	case p.Events >= MaxEvents:
		return nil, tooMany(p.ID)
	}
	return one(&eventsv1.WebhookTestRequested{})
}

func (c Record) decide(p Endpoint) ([]proto.Message, error) {
	if p.TestID == "" || c.Tested.GetTestId() != p.TestID || p.Tested != nil {
		return nil, nil
	}
	return one(c.Tested)
}

func (c Disable) decide(p Endpoint) ([]proto.Message, error) {
	if !p.Active() {
		return nil, nil
	}
	return one(&eventsv1.WebhookDisabled{Reason: c.Reason})
}

func one(m proto.Message) ([]proto.Message, error) { return []proto.Message{m}, nil }

func invalid(field, what string) error {
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(map[string]string{field: what})
}

func tooMany(id string) error {
	return fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "webhook %s has %d events, as many as it may: delete it and create another", id, MaxEvents)
}

func notFound(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonWebhookNotFound, "there is no webhook %s", id)
}
