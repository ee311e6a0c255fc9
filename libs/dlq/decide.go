package dlq

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// handleTimeout bounds one redriven event in its service.
const handleTimeout = time.Minute

// Operator is who decides about letters.
type Operator struct {
	// Name is a subject token: in events it stands as operator:<name>.
	Name string
	// Note says why, in at most MaxNote bytes.
	Note string
}

// MaxNote bounds Operator.Note.
const MaxNote = 1 << 10

func (o Operator) check() error {
	if !subject.ValidToken(o.Name) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "an operator's name is 1 to 64 of A-Z a-z 0-9 _ -")
	}
	if len(o.Note) > MaxNote {
		return fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "a note has at most %d bytes", MaxNote)
	}
	return nil
}

// Redriven is what became of a redrive.
type Redriven struct {
	Letter Letter
	// Seq of the new message in CMD; 0 of an event, which stands in the log once and for all.
	Seq uint64
	// Again: it was redriven before, and this finished what was left of that.
	Again bool
}

// Redriveable says why a letter cannot be redriven, whatever state its consumer is in; nil where it can.
func (l Letter) Redriveable() error {
	switch {
	case l.Stream != topology.StreamCommands && l.Stream != topology.StreamEvents:
		return fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "only commands and events can be redriven")
	case l.Stream == topology.StreamCommands && l.Omitted > 0:
		return fault.New(fault.FailedPrecondition, fault.ReasonTooLarge, "the payload was too large to be kept")
	}
	return nil
}

// Redrive gives a letter's message back to its consumer, records that and removes the letter. A command is published again as it
// was: the same body, and so the same command id, which its handler knows should it have been carried out. An event is handed to
// whoever runs the consumer now, which must take it: the letter stays, with the fault that it gave, where it does not, and
// fault.Unavailable says that nobody runs it. Redriving twice, also at the same time, has one effect; one that was interrupted is
// finished. A letter that was dropped is fault.FailedPrecondition.
func (q *Queue) Redrive(ctx context.Context, id uint64, by Operator) (Redriven, error) {
	if err := by.check(); err != nil {
		return Redriven{}, err
	}
	l, err := q.Show(ctx, id)
	if err != nil {
		return Redriven{}, err
	}
	if err := l.Redriveable(); err != nil {
		return Redriven{}, err
	}
	r := Redriven{Letter: l}
	if l.Stream == topology.StreamEvents {
		if err := q.hand(ctx, l); err != nil {
			return Redriven{}, err
		}
	}
	body := &eventsv1.LetterRedriven{Letter: l.fact(), Note: by.Note}
	if r.Again, err = q.record(ctx, l, redriven, body, by); err != nil {
		return Redriven{}, err
	}
	if l.Stream == topology.StreamCommands {
		if r.Seq, err = q.publish(ctx, l, r.Again); err != nil {
			return Redriven{}, err
		}
	}
	return r, q.remove(ctx, id)
}

// Drop records that a letter's message is never to be handled and removes the letter for good. One that is gone already is
// fault.NotFound, one that was redriven fault.FailedPrecondition.
func (q *Queue) Drop(ctx context.Context, id uint64, by Operator) (Letter, error) {
	if err := by.check(); err != nil {
		return Letter{}, err
	}
	l, err := q.Show(ctx, id)
	if err != nil {
		return Letter{}, err
	}
	if _, err := q.record(ctx, l, dropped, &eventsv1.LetterDropped{Letter: l.fact(), Note: by.Note}, by); err != nil {
		return Letter{}, err
	}
	return l, q.remove(ctx, id)
}

// Decision is what was decided about a letter by the history of its aggregate: redriven, dropped, or empty where nothing was. The
// first decision stands. Another event is fault.Internal with ReasonUnknownEvent.
func Decision(h eventlog.History) (string, error) {
	if len(h.Events) == 0 {
		return "", nil
	}
	switch h.Events[0].Body.(type) {
	case *eventsv1.LetterRedriven:
		return redriven, nil
	case *eventsv1.LetterDropped:
		return dropped, nil
	}
	return "", fault.Newf(fault.Internal, fault.ReasonUnknownEvent, "event %d of type %s is not known to this version; run a newer one",
		h.Events[0].Seq, h.Events[0].Type)
}

const (
	redriven = "redriven"
	dropped  = "dropped"
)

// record makes body, which means decision, the decision about a letter, unless there is one: true where it is the same, an error where
// it is another. The expected sequence of the append is the fence between operators.
func (q *Queue) record(ctx context.Context, l Letter, decision string, body proto.Message, by Operator) (again bool, err error) {
	_, err = eventlog.Execute(ctx, q.log, l.Aggregate(), func(h eventlog.History) ([]envelope.Event, error) {
		was, err := Decision(h)
		switch {
		case err != nil:
			return nil, err
		case was == decision:
			again = true
			return nil, nil
		case was != "":
			return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "the letter was %s by %s", was, h.Events[0].Actor)
		}
		return []envelope.Event{{
			Meta: envelope.Meta{
				// Another id for each run: two operators who decide the same are not one whose acknowledgement was lost.
				ID: ids.New(), Actor: "operator:" + by.Name, Cause: bounded(l.MessageID), Correlation: bounded(l.Header.Get(envelope.HeaderCorrelation)),
				Time: time.Now(),
			},
			Body: body,
		}}, nil
	})
	return again, err
}

// publish puts a command back into its stream.
func (q *Queue) publish(ctx context.Context, l Letter, again bool) (uint64, error) {
	if again {
		// Whoever redrove it first removes the letter behind the publish: one that is gone has been published.
		if _, err := q.Show(ctx, l.ID); fault.CodeOf(err) == fault.NotFound {
			return 0, nil
		}
	}
	m := nats.NewMsg(l.Subject)
	m.Data = l.Data
	for k, v := range l.Header {
		if own(k) {
			m.Header[k] = v
		}
	}
	// Not the old message id: the stream may still remember it and would swallow the message.
	ack, err := q.js.PublishMsg(ctx, m, jetstream.WithMsgID("redrive-"+l.LetterID()), jetstream.WithExpectStream(l.Stream))
	if err != nil {
		return 0, unavailable("publish message", err)
	}
	return ack.Sequence, nil
}

// hand has whoever runs the consumer of an event handle it.
func (q *Queue) hand(ctx context.Context, l Letter) error {
	body, err := proto.Marshal(&commandsv1.RedriveCall{Sequence: l.Seq})
	if err != nil {
		return unavailable("encode the call", err)
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	reply, err := q.js.Conn().RequestWithContext(ctx, subject.Redrive(l.Consumer), body)
	if errors.Is(err, nats.ErrNoResponders) {
		return fault.Newf(fault.Unavailable, fault.ReasonWorkerUnavailable, "no service runs consumer %s now", l.Consumer).Because(err)
	}
	if err != nil {
		return unavailable("ask the consumer", err)
	}
	var out commandsv1.Outcome
	if err := proto.Unmarshal(reply.Data, &out); err != nil {
		return fault.New(fault.Internal, fault.ReasonInternal, "the consumer's answer cannot be read").Because(err)
	}
	if f := fault.FromDetail(out.GetError()); f != nil {
		return f
	}
	return nil
}

// fact is the letter as events tell of it: nothing of the message's content.
func (l Letter) fact() *eventsv1.Letter {
	f := &eventsv1.Letter{
		LetterId: l.LetterID(), Service: l.Service, Consumer: l.Consumer, Stream: l.Stream, Sequence: l.Seq, Subject: l.Subject,
		MessageId: l.MessageID, Reason: l.Reason, ErrorCode: l.Code, ErrorReason: l.FaultReason, ErrorMessage: l.Error,
		Attempts:  uint32(min(max(l.Attempts, 0), 1<<31)), //nolint:gosec // bounded
		SizeBytes: uint64(l.Size + l.Omitted),             //nolint:gosec // not negative
		StoredAt:  timestamppb.New(l.Stored), DiedAt: timestamppb.New(l.Died),
	}
	if l.Omitted == 0 {
		sum := sha256.Sum256(l.Data)
		f.Sha256 = sum[:]
	}
	for _, s := range []*string{
		&f.Service, &f.Consumer, &f.Stream, &f.Subject, &f.MessageId, &f.Reason, &f.ErrorCode, &f.ErrorReason, &f.ErrorMessage,
	} {
		*s = bounded(*s)
	}
	return f
}
