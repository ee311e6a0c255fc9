package project

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
)

const (
	// pullTime is how long one request for events stands, heartbeat how often the server says that it knows of it: a request
	// that the server forgot is noticed after twice that.
	pullTime  = 30 * time.Second
	heartbeat = 5 * time.Second
)

// item is an event that was received.
type item struct {
	msg   jetstream.Msg
	meta  *jetstream.MsgMetadata
	agg   subject.Aggregate
	event envelope.Recorded
	// skip says why the event makes no row and names no owner; empty where it does.
	skip string
	// bad says why it can never be projected.
	bad *unusable
}

// Why an event is skipped.
const (
	skipFree    = "free"
	skipUnknown = "unknown"
)

// types are the events that are decoded. Of the others, which are most, the type is enough.
var types = func() map[string]bool {
	names := map[string]bool{}
	for _, m := range append([]proto.Message{&eventsv1.SandboxRequested{}}, costing...) {
		names[string(m.ProtoReflect().Descriptor().FullName())] = true
	}
	return names
}()

// receive pulls events and decodes them into items until ctx ends. An error means that the connection was closed.
func (p *Projector) receive(ctx context.Context, items chan<- *item) error {
	gone := p.js.Conn().StatusChanged(nats.CLOSED)
	defer p.js.Conn().RemoveStatusListener(gone)
	for failures := 0; ctx.Err() == nil; {
		works, err := p.session(ctx, items, gone)
		if ctx.Err() != nil {
			return nil
		}
		if p.closed() {
			return fmt.Errorf("read events: %w", nats.ErrConnectionClosed)
		}
		if works {
			failures = 0
		}
		failures++
		p.log.Warn("cannot read events, trying again", "error", err)
		pause(ctx, failures)
	}
	return nil
}

// session pulls until ctx ends, the connection is closed or the server ends it, and says whether anything came. When it returns
// nothing is put into items any more.
func (p *Projector) session(ctx context.Context, items chan<- *item, gone <-chan nats.Status) (works bool, err error) {
	take := func(m jetstream.Msg) {
		works = true
		if ctx.Err() == nil {
			select {
			case items <- p.decode(m):
				return
			case <-ctx.Done():
			}
		}
		// At once instead of after the acknowledgement's time.
		_ = m.Nak()
	}
	pulls, err := p.consumer.Consume(take, jetstream.PullMaxMessagesWithBytesLimit(window, windowBytes), jetstream.PullExpiry(pullTime),
		jetstream.PullHeartbeat(heartbeat), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			p.log.Warn("reading events", "error", err)
		}))
	if err != nil {
		return false, fmt.Errorf("pull events: %w", err)
	}
	ended := pulls.Closed()
	select {
	case <-ended:
		return works, fmt.Errorf("the server ended the pull")
	case <-gone:
		pulls.Stop()
	case <-ctx.Done():
		// A drain asks the server, which is not there; what has arrived comes again after the acknowledgement's time.
		if p.js.Conn().IsConnected() {
			pulls.Drain()
		} else {
			pulls.Stop()
		}
	}
	<-ended
	return works, nats.ErrConnectionClosed
}

func (p *Projector) decode(m jetstream.Msg) *item {
	i := &item{msg: m}
	var err error
	if i.meta, err = m.Metadata(); err != nil {
		i.meta, i.bad = &jetstream.MsgMetadata{}, &unusable{"it does not come from a stream", err}
		return i
	}
	if i.agg, err = subject.ParseEvent(m.Subject()); err != nil {
		i.bad = &unusable{"its subject is not that of an event", err}
		return i
	}
	name := m.Headers().Get(envelope.HeaderType)
	if name != "" && !types[name] {
		i.skip = skipFree
		if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name)); err != nil {
			i.skip = skipUnknown
		}
		return i
	}
	if i.event, err = envelope.Decode(m.Subject(), i.meta.Sequence.Stream, m.Headers(), m.Data()); err != nil {
		i.bad = &unusable{"it cannot be decoded", err}
	}
	return i
}
