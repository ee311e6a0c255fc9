package rig

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// upstream accepts connections and does not read from them, unless it echoes.
func upstream(t *testing.T, echo bool) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			if echo {
				go io.Copy(c, c)
			}
		}
	}()
	return l.Addr().String()
}

func openLink(t *testing.T, to string) *Link {
	p := newProxies()
	l, err := p.open("a", "b", to)
	require.NoError(t, err)
	t.Cleanup(p.close)
	return l
}

func requireEcho(t *testing.T, l *Link) {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)
	b := make([]byte, 5)
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
}

// A proxy whose toxics cannot be taken away any more left its link dead for the rest of a run.
func TestALinkWorksAfterItsProxyHangs(t *testing.T) {
	l := openLink(t, upstream(t, true))
	requireEcho(t, l)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	l.mu.Lock()
	before := l.proxy
	err := l.change(func() error { <-never; return nil })
	l.mu.Unlock()
	require.NoError(t, err)
	require.NotSame(t, before, l.proxy)
	requireEcho(t, l)
}

func TestToxicsComeAndGoWhileNobodyReads(t *testing.T) {
	l := openLink(t, upstream(t, false))
	for range 8 {
		c, err := net.Dial("tcp", l.Addr())
		require.NoError(t, err)
		defer c.Close()
		// Until the buffers on the way are full.
		go io.Copy(c, endless{})
	}
	for _, toxic := range []Toxic{
		{Type: "slicer", Stream: Up, Attributes: map[string]any{"average_size": 64, "size_variation": 8, "delay": 10}},
		{Type: "latency", Stream: Up, Attributes: map[string]any{"latency": 20, "jitter": 10}},
		{Type: "bandwidth", Stream: Up, Attributes: map[string]any{"rate": 64}},
		{Type: "timeout", Stream: Up, Attributes: map[string]any{"timeout": 0}},
	} {
		require.NoError(t, l.Add(toxic))
		require.NoError(t, l.Clean(t.Context()))
	}
}

func TestACutLinkRefusesUntilItIsRestored(t *testing.T) {
	l := openLink(t, upstream(t, true))
	c, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	defer c.Close()
	l.Cut()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = net.Dial("tcp", l.Addr())
	require.Error(t, err)
	require.NoError(t, l.Restore())
	requireEcho(t, l)
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
