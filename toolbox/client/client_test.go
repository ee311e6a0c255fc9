package client_test

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

func TestKeeperThatIsNotThere(t *testing.T) {
	state := t.TempDir()
	c := client.New(client.KeeperDialer(state, "s1"), "")
	_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.MkdirAll(filepath.Join(state, "sandboxes", "s1"), 0o700))
	_, err = c.Hello(t.Context(), &toolboxv1.Hello{})
	require.ErrorIs(t, err, client.ErrUnavailable)
	for _, id := range []string{"", ".", "..", "../s1", "a/b"} {
		_, err := client.KeeperDialer(state, id)(t.Context())
		require.ErrorIs(t, err, fs.ErrInvalid)
	}
}

// Calls leave no descriptor behind, whether they succeed or not.
func TestDescriptorsStayFlat(t *testing.T) {
	open := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(l)
	}
	state := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(state, "sandboxes", "s1"), 0o700))
	c := client.New(client.KeeperDialer(state, "s1"), "")
	before := open()
	for range 200 {
		_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
		require.ErrorIs(t, err, client.ErrUnavailable)
		_, err = c.Attach(t.Context(), &toolboxv1.Attach{})
		require.ErrorIs(t, err, client.ErrUnavailable)
	}
	require.LessOrEqual(t, open(), before+2)
}

// peer is a toolbox of one answer, given by hand.
func peer(t *testing.T, answer func(net.Conn)) *client.Client {
	return client.New(func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close() })
		go func() {
			defer there.Close()
			var req toolboxv1.Request
			if wire.Read(there, &req) == nil {
				answer(there)
			}
		}()
		return here, nil
	}, "")
}

func TestPeersThatBreakTheProtocol(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){
		"nothing": func(net.Conn) {},
		"half":    func(c net.Conn) { c.Write([]byte{0, 0, 0, 9, 1}) },
		"huge":    func(c net.Conn) { c.Write([]byte{255, 255, 255, 255}) },
		"empty":   func(c net.Conn) { wire.Write(c, &toolboxv1.Response{}) },
		"other call": func(c net.Conn) {
			wire.Write(c, &toolboxv1.Response{Answer: &toolboxv1.Response_Usage{Usage: &toolboxv1.UsageReply{}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := peer(t, answer)
			_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
			require.ErrorIs(t, err, client.ErrUnavailable)
			s, err := c.Attach(t.Context(), &toolboxv1.Attach{})
			require.NoError(t, err)
			_, err = s.Recv()
			require.ErrorIs(t, err, client.ErrUnavailable)
		})
	}
}

func TestRequestOverTheBoundIsRefusedHere(t *testing.T) {
	c := peer(t, func(net.Conn) {})
	_, err := c.WriteFile(t.Context(), &toolboxv1.WriteFile{Data: make([]byte, wire.MaxMessage)})
	require.ErrorIs(t, err, &client.Error{Code: "invalid_argument", Reason: "too_large"})
}
