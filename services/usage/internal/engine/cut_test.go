package engine_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
)

// said records what the clients of a server say on the first connection that is made through the address it returns.
func said(t *testing.T, to string) (through string, words func() []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var mu sync.Mutex
	var all []byte
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(c, up) }()
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			mu.Lock()
			all = append(all, b[:n]...)
			mu.Unlock()
			if err != nil {
				_ = up.Close()
				return
			}
			_, _ = up.Write(b[:n])
		}
	}()
	return l.Addr().String(), func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// native is what a client of the native protocol says that makes the tables.
func native(t *testing.T, e *engine.Engine) []byte {
	t.Helper()
	through, words := said(t, e.Native())
	u, err := url.Parse(e.URL())
	require.NoError(t, err)
	u.Host = through
	c, err := clickhouse.Open(u.String())
	require.NoError(t, err)
	require.NoError(t, c.Up(t.Context()))
	require.NoError(t, c.Close())
	return words()
}

// Whatever a client says to a port before it goes, and however it goes, the engine stays.
func TestClientsThatGoInTheMiddleOfAWordDoNotEndTheEngine(t *testing.T) {
	e := start(t, engine.Options{})
	asked := []byte("POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic ZGVmYXVsdDo=\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n0\r\n\r\n")
	garbled := []byte(strings.Repeat("\x00\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12))
	for _, c := range []struct {
		name, address string
		words         []byte
	}{
		{"native", e.Native(), native(t, e)},
		{"HTTP", strings.TrimPrefix(e.HTTP(), "http://"), asked},
		{"native, garbled", e.Native(), garbled},
		{"HTTP, garbled", strings.TrimPrefix(e.HTTP(), "http://"), garbled},
		{"HTTP on the native port", e.Native(), asked},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NotEmpty(t, c.words)
			for n := 0; n <= len(c.words); n += 1 + min(n/300, 1)*397 {
				require.NoError(t, leave(c.address, c.words[:n], true))
				require.NoError(t, leave(c.address, c.words[:n], false))
			}
			code, answer := ask(t, e.HTTP(), "SELECT 1")
			require.Equal(t, http.StatusOK, code, answer)
			require.Zero(t, e.Restarts())
		})
	}
}

// The worst moment is while the engine reads a body or answers, which is not when the words end: many clients find it.
func TestClientsThatResetRequestsDoNotEndTheEngine(t *testing.T) {
	e := start(t, engine.Options{})
	head := "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic ZGVmYXVsdDo=\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, body := range []string{"", "8\r\nSELE", "8\r\nSELECT 1\r\n", "8\r\nSELECT 1\r\n0\r\n\r\n", "zz\r\n"} {
		var clients errgroup.Group
		for range 4 {
			clients.Go(func() error {
				var failed error
				for range 100 {
					failed = errors.Join(failed, leave(strings.TrimPrefix(e.HTTP(), "http://"), []byte(head+body), true))
				}
				return failed
			})
		}
		require.NoError(t, clients.Wait())
		code, answer := ask(t, e.HTTP(), "SELECT 1")
		require.Equal(t, http.StatusOK, code, "%s after %q", answer, body)
	}
	require.Zero(t, e.Restarts())
}

// leave says words on a new connection and ends it: by reset, or in order, and then waits until the other side is done with it, which it
// has to be within 20 s.
func leave(address string, words []byte, reset bool) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	_, _ = c.Write(words)
	if reset {
		return c.(*net.TCPConn).SetLinger(0)
	}
	if c.(*net.TCPConn).CloseWrite() == nil {
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}
