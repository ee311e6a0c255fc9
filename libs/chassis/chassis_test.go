package chassis_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/chassis"
	"github.com/sandtrail/sandtrail/libs/natstest"
)

type service func(context.Context) error

func (s service) Run(ctx context.Context) error { return s(ctx) }

func flags(url string) chassis.Flags {
	return chassis.Flags{NATS: url, Replicas: 1, LogLevel: "error", LogFormat: "text"}
}

func TestValidateTouchesNothing(t *testing.T) {
	f := flags("nats://127.0.0.1:1") // nobody listens there
	f.Check = true
	build := func(context.Context, chassis.Host) (chassis.Service, error) {
		t.Error("the service was built")
		return nil, errors.New("built")
	}
	require.Zero(t, chassis.Run(t.Context(), "x", f, nil, build))
	require.Equal(t, 1, chassis.Run(t.Context(), "x", f, func() error { return errors.New("wrong") }, build))
	f.Replicas = 2
	require.Equal(t, 1, chassis.Run(t.Context(), "x", f, nil, build))
}

func TestAServiceThatIsDoneEndsItsProcess(t *testing.T) {
	n := natstest.Start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	f := flags(n.URL)
	f.Ops = l.Addr().String()

	ready := make(chan struct{})
	code := make(chan int, 1)
	go func() {
		code <- chassis.Run(t.Context(), "x", f, nil, func(_ context.Context, h chassis.Host) (chassis.Service, error) {
			if h.Tracer == nil || h.Registry == nil {
				return nil, errors.New("the host is incomplete")
			}
			return service(func(context.Context) error { <-ready; return nil }), nil
		})
	}()
	require.Eventually(t, func() bool {
		res, err := http.Get("http://" + f.Ops + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusOK
	}, 20*time.Second, 20*time.Millisecond)
	close(ready)
	select {
	case c := <-code:
		require.Zero(t, c)
	case <-time.After(20 * time.Second):
		require.Fail(t, "health and metrics keep a service alive that is done")
	}
}
