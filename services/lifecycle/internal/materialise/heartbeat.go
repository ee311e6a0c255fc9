package materialise

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Heartbeat tells the schedulers that a worker lives and what it has.
type Heartbeat struct {
	Status *commandsv1.WorkerStatus
	// Sandboxes counts those on this worker now.
	Sandboxes func() int
	// Cordoned is why no new sandbox is to come to this worker, empty where they are.
	Cordoned func() string
	Every    time.Duration
	Log      *slog.Logger
	Now      func() time.Time
}

// Run beats until ctx ends, also at once when the connection comes back; a beat that fails is logged and the next one made in
// time.
func (h Heartbeat) Run(ctx context.Context, js jetstream.JetStream) error {
	tick := time.NewTicker(h.Every)
	defer tick.Stop()
	connected := js.Conn().StatusChanged(nats.CONNECTED)
	defer js.Conn().RemoveStatusListener(connected)
	for {
		if err := h.Beat(ctx, js); err != nil && ctx.Err() == nil {
			h.Log.Warn("the heartbeat of this worker was not stored", "error", err)
		}
		select {
		case <-tick.C:
		case <-connected:
		case <-ctx.Done():
			return nil
		}
	}
}

// Beat stores one heartbeat.
func (h Heartbeat) Beat(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, h.Every)
	defer cancel()
	kv, err := js.KeyValue(ctx, topology.BucketWorker)
	if err != nil {
		return fmt.Errorf("open the bucket of workers: %w", err)
	}
	status := proto.CloneOf(h.Status)
	status.Time = timestamppb.New(h.Now())
	status.Sandboxes = uint32(max(h.Sandboxes(), 0)) //nolint:gosec // bounded by the places of a worker
	status.Cordoned = h.Cordoned()
	data, err := proto.Marshal(status)
	if err != nil {
		return fmt.Errorf("encode the heartbeat: %w", err)
	}
	if _, err := kv.Put(ctx, status.GetWorker(), data); err != nil {
		return fmt.Errorf("store the heartbeat: %w", err)
	}
	return nil
}
