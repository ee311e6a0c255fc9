package figure

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

// syncInterval is that of `sandtrail up`.
const syncInterval = time.Second

// server is an embedded server like that of `sandtrail up`, with its streams, in this process.
type server struct {
	dir string
	ns  *natsserver.Server
	nc  *nats.Conn
	js  jetstream.JetStream
}

func startServer(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "sandtrail-bench-nats-")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) start(ctx context.Context) (err error) {
	if s.ns, err = natsserver.Start(natsserver.Options{Dir: s.dir, SyncInterval: syncInterval}); err != nil {
		return err
	}
	if s.nc, err = s.ns.Connect(); err != nil {
		return err
	}
	if s.js, err = jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(256)); err != nil {
		return err
	}
	return topology.Ensure(ctx, s.js, topology.Options{Replicas: 1})
}

func (s *server) close() error {
	if s.nc != nil {
		s.nc.Close()
	}
	if s.ns != nil {
		s.ns.Shutdown()
	}
	return os.RemoveAll(s.dir)
}

// rawOutput publishes blocks the fastest way that nats.go has, and gives the rate of each slice in MB/s, by acknowledgements.
func rawOutput(ctx context.Context, count int) (rates sample.Values, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	acks := make(chan jetstream.PubAckFuture, count)
	failed := make(chan error, 1)
	slices := sample.NewSlices(slice / mega)
	go func() {
		acked := 0
		for f := range acks {
			select {
			case <-f.Ok():
				acked += block
				slices.Mark(float64(acked) / mega)
			case err := <-f.Err():
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	bl := newBlocks()
	for i := range count {
		// The client copies what it is given before it returns.
		f, err := s.js.PublishAsync("out.bench.raw.output", bl.number(i))
		if err != nil {
			close(acks)
			return nil, err
		}
		acks <- f
	}
	close(acks)
	return slices.Rates(), <-failed
}
