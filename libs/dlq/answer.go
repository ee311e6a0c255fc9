package dlq

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Answer takes redrives for a consumer of events until ctx ends: handle gets the sequence of one event in EVT at a time and does
// with it what the consumer does, idempotently. Of several processes that answer for one consumer one gets each redrive. What handle
// panics with is its error.
func Answer(ctx context.Context, nc *nats.Conn, consumer string, log *slog.Logger, handle func(ctx context.Context, seq uint64) error) (stop func(), err error) {
	if !subject.ValidToken(consumer) {
		return nil, fmt.Errorf("%q is not the name of a consumer", consumer)
	}
	sub, err := nc.QueueSubscribe(subject.Redrive(consumer), consumer, func(m *nats.Msg) {
		out := &commandsv1.Outcome{}
		err := answer(ctx, m.Data, handle)
		if err != nil {
			log.WarnContext(ctx, "a redriven event was not taken", "consumer", consumer, "error", err)
			code, reason, sentence := Explain(err)
			detail, grpc := fault.Detail(fault.New(code, reason, sentence))
			out.Error, out.GrpcCode = detail, uint32(grpc)
		}
		data, err := proto.Marshal(out)
		if err == nil {
			err = m.Respond(data)
		}
		if err != nil {
			log.WarnContext(ctx, "a redrive could not be answered", "consumer", consumer, "error", err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("take redrives of %s: %w", consumer, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // the connection is closing if this fails
}

func answer(ctx context.Context, data []byte, handle func(context.Context, uint64) error) (err error) {
	call := &commandsv1.RedriveCall{}
	if err := proto.Unmarshal(data, call); err != nil || call.GetSequence() == 0 {
		return Undecodable("a RedriveCall", err)
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = Caught(p)
		}
	}()
	return handle(ctx, call.GetSequence())
}
