package connect

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// doorAt is a door at a port that nobody has.
func doorAt(t *testing.T) (*Door, string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return &Door{Port: uint16(l.Addr().(*net.TCPAddr).Port)}, l.Addr().String()
}

// knock connects, once somebody listens, and gives what comes back for what it says.
func knock(address, say string) (string, error) {
	for until := time.Now().Add(20 * time.Second); ; {
		conn, err := net.Dial("tcp4", address)
		if err != nil && time.Now().Before(until) {
			continue
		}
		if err != nil {
			return "", err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, say); err != nil {
			return "", err
		}
		got := make([]byte, len(say))
		_, err = io.ReadFull(conn, got)
		return string(got), err
	}
}

func TestConnectionsOutComeToWhoWaits(t *testing.T) {
	door, address := doorAt(t)
	h, _ := joinedAt(t, door)
	var all sync.WaitGroup
	const programs = 20
	for i := range programs {
		all.Go(func() {
			say := fmt.Sprintf("program %02d", i)
			if got, err := knock(address, say); err != nil || got != say {
				t.Errorf("%q came back as %q: %v", say, got, err)
			}
		})
	}
	for range programs {
		conn, err := h.Accept(t.Context())
		require.NoError(t, err)
		all.Go(func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		})
	}
	all.Wait()
}

// Who gives up waiting takes no connection from those who wait on.
func TestWhoGivesUpTakesNothing(t *testing.T) {
	door, address := doorAt(t)
	h, _ := joinedAt(t, door)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := h.Accept(ctx)
		gone <- err
	}()
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	took := make(chan error, 1)
	go func() {
		conn, err := h.Accept(t.Context())
		if err == nil {
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
		took <- err
	}()
	got, err := knock(address, "hello")
	require.NoError(t, err)
	require.Equal(t, "hello", got)
	require.NoError(t, <-took)
}

func TestAProgramThatListensAtTheWayOut(t *testing.T) {
	door, address := doorAt(t)
	l, err := net.Listen("tcp4", address)
	require.NoError(t, err)
	defer l.Close()
	h, _ := joinedAt(t, door)
	_, err = h.Accept(t.Context())
	require.ErrorIs(t, err, &wire.Error{Code: "unavailable", Reason: "port_unavailable"})
	require.True(t, h.Idle())
}

// A door at which nobody waits any more is shut, and opens for the next one.
func TestADoorIsShutWhenNobodyWaits(t *testing.T) {
	door, address := doorAt(t)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := door.Accept(ctx)
		waits <- err
	}()
	require.Eventually(t, func() bool {
		door.mu.Lock()
		defer door.mu.Unlock()
		return door.waiting == 1
	}, 20*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
	door.mu.Lock()
	opened := door.open
	door.mu.Unlock()
	door.shut(opened)
	<-opened.over
	_, err := net.Dial("tcp4", address)
	require.Error(t, err)
	go func() {
		conn, err := door.Accept(t.Context())
		if err == nil {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
		waits <- err
	}()
	got, err := knock(address, "again")
	require.NoError(t, err)
	require.Equal(t, "again", got)
	require.NoError(t, <-waits)
}
