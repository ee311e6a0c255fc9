// Package feed reads the events of a stream in order, from a sequence on, as fast as they can be had: nothing is acknowledged, so
// the server keeps no account of what was delivered. Where a reader has come to is its own to remember.
package feed

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
)

// Bounds.
const (
	// MinWindow is the smallest window, in bytes.
	MinWindow = 1 << 20
	// MaxMessages bounds what is read ahead, beside the window in bytes.
	MaxMessages = 2048
	// half of both is asked for at once, and again when that much has come, so that the server never waits for a reader that reads.
	half = MaxMessages / 2

	// expires is how long the server keeps a request for messages, beats how often it says so while none comes.
	expires = 30 * time.Second
	beats   = 2 * time.Second
	// inactive is after how long without a request the server forgets a consumer whose reader is gone.
	inactive    = time.Minute
	callTimeout = 5 * time.Second
	// spare is room for what the server says beside messages, so that none of them is dropped.
	spare = 256
)

var (
	// ErrGap: a message is missing, or the connection was made anew. Open another feed behind the last message.
	ErrGap = errors.New("the feed of messages has a gap")
	// ErrEnded: the server ended the feed or has gone quiet: its leader moved, the consumer or the stream was removed.
	ErrEnded = errors.New("the server ended the feed of messages")
)

// Options of a feed.
type Options struct {
	Stream string
	// Subjects are filters; none means every message, which costs the server least.
	Subjects []string
	// From is the stream sequence to begin at, or the first one behind it that exists.
	From uint64
	// Window bounds what is read ahead, in bytes; at least MinWindow, and half of it must have room for the largest message.
	Window int
}

// Message is a message as it stands in the stream.
type Message struct {
	Subject string
	// Seq is the stream sequence.
	Seq uint64
	// Left is how many messages of the feed stood behind this one when it was sent.
	Left uint64
	// Stored is when the stream took it, in Unix nanoseconds.
	Stored int64
	Data   []byte

	block  []byte
	parsed nats.Header
}

// Stored is a message of a stream that was read by itself; nothing is said about how many are left behind it.
func Stored(m *jetstream.RawStreamMsg) Message {
	return Message{Subject: m.Subject, Seq: m.Sequence, Stored: m.Time.UnixNano(), Data: m.Data, parsed: m.Header}
}

// Head reads what the headers say about an event.
func (m Message) Head() envelope.Head {
	if m.block != nil {
		// Nobody writes to what the client has read, so the texts may share its memory: a copy would be a seventh of the garbage
		// of an event, and the collector's work is a third of what events cost.
		return envelope.ReadHead(unsafe.String(unsafe.SliceData(m.block), len(m.block)))
	}
	return envelope.HeadOf(m.parsed)
}

// Block is the headers as they stand in the stream, "NATS/1.0" and their end included; "" of a message without any, and of one that
// was read by itself. It shares the message's memory.
func (m Message) Block() string {
	return unsafe.String(unsafe.SliceData(m.block), len(m.block))
}

// Header is all headers; nil of a message without any.
func (m Message) Header() nats.Header {
	if m.block == nil {
		return m.parsed
	}
	// What the client would have given: nothing of headers that are none.
	h, err := nats.DecodeHeadersMsg(m.block)
	if err != nil {
		return nil
	}
	return h
}

// Feed is for one goroutine, but for Close.
type Feed struct {
	js jetstream.JetStream
	o  Options
	// nc is the feed's own connection, or that of js.
	nc       *nats.Conn
	consumer jetstream.Consumer
	name     string
	sub      *nats.Subscription
	inbox    string
	arrived  chan *nats.Msg
	// status is that of the connection of js, lost that of an own one.
	status, lost chan nats.Status
	// messages is how many have been asked for and have not come.
	messages int
	// delivered is the sequence of the last message among those of this consumer.
	delivered uint64
	// timer ends a wait. It is set once for many messages: armed says until when.
	timer *time.Timer
	armed time.Time
	// heard is when something came last, or when the caller came back from elsewhere; left is when it left without a message.
	heard, left time.Time
	// got: a message came since heard was set.
	got bool
}

// Open begins a feed. Close ends it.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Feed, error) {
	o.Window = max(o.Window, MinWindow)
	f := &Feed{js: js, o: o, arrived: make(chan *nats.Msg, MaxMessages+spare), timer: time.NewTimer(time.Hour)}
	f.timer.Stop()
	f.status = js.Conn().StatusChanged(nats.CONNECTED, nats.CLOSED)
	if f.nc = dial(js.Conn()); f.nc != nil {
		f.lost = f.nc.StatusChanged(nats.CLOSED)
	} else {
		f.nc = js.Conn()
	}
	f.inbox = f.nc.NewInbox()
	var err error
	if f.sub, err = f.nc.ChanSubscribe(f.inbox, f.arrived); err != nil {
		f.Close()
		return nil, fmt.Errorf("open feed: %w", err)
	}
	if err := f.consume(ctx); err != nil {
		f.Close()
		return nil, fmt.Errorf("open feed of %s: %w", o.Stream, err)
	}
	return f, nil
}

// consume makes the consumer and asks for the first messages.
func (f *Feed) consume(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(f.o.From, 1), FilterSubjects: f.o.Subjects,
		AckPolicy: jetstream.AckNonePolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
		// It holds nothing that is worth a file or a replica.
		MemoryStorage: true, Replicas: 1, InactiveThreshold: inactive,
	}
	var err error
	if f.consumer, err = f.js.CreateConsumer(ctx, f.o.Stream, c); err != nil {
		return err
	}
	f.name, f.heard = f.consumer.CachedInfo().Name, time.Now()
	return f.ask()
}

// Close ends the feed and removes its consumer; without a connection the server does that by itself. It may be called twice.
func (f *Feed) Close() {
	nc := f.js.Conn()
	nc.RemoveStatusListener(f.status)
	if f.sub != nil {
		_ = f.sub.Unsubscribe()
	}
	if f.nc != nc {
		f.nc.RemoveStatusListener(f.lost)
		f.nc.Close()
	}
	if f.name == "" || !nc.IsConnected() {
		return
	}
	// Nobody waits for the answer: a consumer that stays goes by its inactivity.
	_ = nc.PublishRequest(directget.API(f.js, "CONSUMER.DELETE."+f.o.Stream+"."+f.name), nc.NewInbox(), nil)
	f.name = ""
}

// Next gives the next message. false: none came within wait. An error ends the feed: that of ctx, nats.ErrConnectionClosed,
// ErrGap or ErrEnded.
func (f *Feed) Next(ctx context.Context, wait time.Duration) (Message, bool, error) {
	var deadline time.Time
	for {
		raw := f.next()
		if raw == nil {
			if deadline.IsZero() {
				now := time.Now()
				deadline = now.Add(wait)
				if f.got || now.Sub(f.left) > time.Second {
					f.heard, f.got = now, false
				}
			}
			var err error
			if raw, err = f.await(ctx, deadline); raw == nil {
				return Message{}, false, err
			}
		}
		m, ok := parse(raw)
		if !ok {
			if err := f.said(raw); err != nil {
				return Message{}, false, err
			}
			continue
		}
		f.messages--
		if err := f.ask(); err != nil {
			return Message{}, false, err
		}
		f.delivered++
		if m.delivered != f.delivered {
			return Message{}, false, fmt.Errorf("%w before message %d", ErrGap, m.Seq)
		}
		f.got = true
		return m.Message, true, nil
	}
}

// next gives what has arrived, nil where nothing has. Before it gives up it lets others run: the client then reads many messages
// while this one waits, where a blocked reader would be woken for each.
func (f *Feed) next() *nats.Msg {
	select {
	case m := <-f.arrived:
		return m
	default:
		runtime.Gosched()
	}
	select {
	case m := <-f.arrived:
		return m
	default:
		return nil
	}
}

// await blocks until something comes, the deadline passes (nil and no error) or the feed ends.
func (f *Feed) await(ctx context.Context, deadline time.Time) (*nats.Msg, error) {
	for {
		// A timer that fires early costs one more turn; setting it anew for each message would cost more.
		if f.armed.IsZero() || f.armed.After(deadline) {
			f.armed = deadline
			if look := time.Now().Add(beats); look.Before(deadline) {
				f.armed = look
			}
			f.timer.Reset(time.Until(f.armed))
		}
		select {
		case m := <-f.arrived:
			return m, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case s := <-f.status:
			if s == nats.CLOSED {
				return nil, nats.ErrConnectionClosed
			}
			// What was asked for on the connection before is not known to the server any more.
			return nil, fmt.Errorf("%w: the connection was made anew", ErrGap)
		case <-f.lost:
			if f.js.Conn().IsClosed() {
				return nil, nats.ErrConnectionClosed
			}
			return nil, fmt.Errorf("%w: the connection was lost", ErrGap)
		case <-f.timer.C:
			f.armed = time.Time{}
		}
		now := time.Now()
		if now.Sub(f.heard) > 2*beats+time.Second {
			return nil, fmt.Errorf("%w: nothing heard for %s", ErrEnded, now.Sub(f.heard).Round(time.Second))
		}
		if !now.Before(deadline) {
			f.left = now
			return nil, nil // nothing came, and that is no error
		}
	}
}

// Left asks the server how many messages are left for this feed, and the sequence of the last one that it has sent.
func (f *Feed) Left(ctx context.Context) (left, last uint64, err error) {
	info, err := f.consumer.Info(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("read the state of a feed: %w", err)
	}
	return info.NumPending, info.Delivered.Stream, nil
}
