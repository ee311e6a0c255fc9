package toolboxtest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/connect"
)

// RunConnect checks what a toolbox promises of connections to ports. The sandbox has busybox's nc.
func RunConnect(t *testing.T, c *client.Client) {
	s := suite{c}
	t.Run("bytes", s.connectBytes)
	t.Run("end", s.connectEnd)
	t.Run("refusals", s.connectRefusals)
	t.Run("bound", s.connectBound)
}

// listening starts a program for each connection to a port, and gives the port.
func (s suite) listening(t *testing.T, program string) uint32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a sandbox may have this machine's
	require.NoError(t, err)
	port := uint32(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	require.NoError(t, l.Close())
	s.sh(t, fmt.Sprintf("exec nc -ll -p %d -e %s", port, program))
	require.Eventually(t, func() bool {
		conn, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: port})
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, patience, 20*time.Millisecond)
	return port
}

func (s suite) connect(t *testing.T, port uint32) net.Conn {
	t.Helper()
	conn, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: port})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// Eight connections at once each have their own bytes back, while a ninth is read by nobody.
func (s suite) connectBytes(t *testing.T) {
	port := s.listening(t, "/bin/cat")
	stuck := s.connect(t, port)
	go func() { _, _ = io.Copy(stuck, zeros{}) }()
	var all sync.WaitGroup
	for range 8 {
		conn := s.connect(t, port)
		all.Go(func() {
			sent := make([]byte, 1<<20)
			rand.Read(sent)
			go func() { _, _ = conn.Write(sent) }()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(sent, got) {
				t.Errorf("what came back is not what was sent (%v)", err)
			}
		})
	}
	all.Wait()
	require.NoError(t, stuck.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// All that a program has written comes before its end.
func (s suite) connectEnd(t *testing.T) {
	require.Zero(t, s.collect(t, s.sh(t, `printf '#!/bin/sh\nseq 200000\n' >/workspace/count; chmod +x /workspace/count`), 0, 0).end.ExitCode)
	got, err := io.ReadAll(s.connect(t, s.listening(t, "/workspace/count")))
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(got, []byte("\n199999\n200000\n")), "%d bytes", len(got))
}

func (s suite) connectRefusals(t *testing.T) {
	for _, port := range []uint32{0, 65536, 1 << 20} {
		_, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: port})
		require.ErrorIs(t, err, &client.Error{Code: "invalid_argument", Reason: "validation"})
	}
	_, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: 1})
	require.ErrorIs(t, err, &client.Error{Code: "unavailable", Reason: "port_unavailable"})
}

// One more than there may be is refused, and let in once another one has gone.
func (s suite) connectBound(t *testing.T) {
	port := s.listening(t, "/bin/cat")
	var all []net.Conn
	for range connect.Most {
		conn, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: port})
		if err != nil {
			break // earlier ones are closing still
		}
		all = append(all, conn)
	}
	require.NotEmpty(t, all)
	require.Eventually(t, func() bool {
		conn, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: port})
		if err == nil {
			all = append(all, conn)
			return false
		}
		require.ErrorIs(t, err, &client.Error{Code: "resource_exhausted", Reason: "too_many_calls"})
		return len(all) == connect.Most
	}, patience, time.Millisecond)
	for _, conn := range all {
		conn.Close()
	}
	require.Eventually(t, func() bool {
		conn, err := s.Connect(s.context(t), &toolboxv1.Connect{Port: port})
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, patience, 20*time.Millisecond)
}
