package natsserver

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// watchEvery is how often a server is asked whether it still stores what it is given.
const watchEvery = time.Second

// watch looks after a server once somebody wants to know.
type watch struct {
	once   sync.Once
	stop   chan struct{}
	failed chan error
}

// Failed brings one error when the server can no longer store anything, as after a full or broken disk: JetStream then refuses
// every write until the server is started again, also when the disk is well. Nothing comes while it serves, or after Shutdown.
func (s *Server) Failed() <-chan error {
	s.watch.once.Do(func() {
		s.watch.failed = make(chan error, 1)
		go s.lookAfter()
	})
	return s.watch.failed
}

func (s *Server) lookAfter() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.watch.stop:
			return
		case <-tick.C:
		}
		if err := s.broken(); err != nil {
			s.watch.failed <- err
			return
		}
	}
}

// writeError is how the server's health names an error that ends all writes to a stream; one without a leader, or one that still
// recovers, is not named so.
const writeError = "write error"

// broken is why the server can no longer store, nil while it can.
func (s *Server) broken() error {
	if s.flusher != nil && s.flusher.err() != nil {
		return fmt.Errorf("JetStream stores what does not reach the disk: %w", s.flusher.err())
	}
	if !s.ns.JetStreamEnabled() && s.ns.Running() {
		return errors.New("JetStream has ended: its disk is full or broken")
	}
	for _, e := range s.ns.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if strings.Contains(e.Error, writeError) {
			return fmt.Errorf("JetStream has stopped to store: %s", e.Error)
		}
	}
	return nil
}
