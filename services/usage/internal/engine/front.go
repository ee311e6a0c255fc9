package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
)

// front holds the engine's two public ports, also while its process is started again, and hands connections on once their first
// words are whole; the engine sees none of them reset. The library ends its process on an exception that leaves a handler, which
// a client causes that goes in the middle of a greeting or of a request: without the front any port scan would end the engine.
type front struct {
	native, http net.Listener
	server       *http.Server
	// engine is where the process serves; nil while there is none.
	engine atomic.Pointer[ports]

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	passes sync.WaitGroup
}

const (
	// greetingPatience bounds how long a client may take for what stands before its first query.
	greetingPatience = 10 * time.Second
	// maxWord bounds each text of a greeting, in bytes: names, a password, a quota key.
	maxWord = 64 << 10
	// maxDrained bounds what is still taken from the engine, in bytes, when the client is gone.
	maxDrained = 1 << 20
)

// newFront takes the ports; both may be wishes as in Options. fault.FailedPrecondition: one of them is taken.
func newFront(native, web int) (*front, error) {
	f := &front{conns: map[net.Conn]struct{}{}}
	var err error
	if f.native, err = listen(native, DefaultNative); err != nil {
		return nil, err
	}
	if f.http, err = listen(web, DefaultHTTP); err != nil {
		_ = f.native.Close()
		return nil, err
	}
	f.server = &http.Server{
		Handler: f.proxy(), ReadHeaderTimeout: greetingPatience, IdleTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
	}
	f.passes.Go(func() { _ = f.server.Serve(f.http) })
	f.passes.Go(f.accept)
	return f, nil
}

// listen turns a wish into a listener: see Options.
func listen(wish, standard int) (net.Listener, error) {
	if wish < 0 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", standard)); err == nil {
			return l, nil
		}
		wish = 0
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", wish))
	if err != nil {
		return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonConflict, "the built-in ClickHouse cannot have port %d: choose another, or 0 for any", wish).Because(err)
	}
	return l, nil
}

// ports are the public ones.
func (f *front) ports() ports {
	return ports{Native: f.native.Addr().(*net.TCPAddr).Port, HTTP: f.http.Addr().(*net.TCPAddr).Port}
}

// close gives up the ports and ends every connection.
func (f *front) close() {
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	_ = f.native.Close()
	_ = f.server.Close()
	f.passes.Wait()
}

// hold has close end a connection too, and wait for its release; false, with the connection closed, when close has been called.
func (f *front) hold(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = c.Close()
		return false
	}
	f.conns[c] = struct{}{}
	f.passes.Add(1)
	return true
}

func (f *front) release(c net.Conn) {
	_ = c.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	f.passes.Done()
}

// dial connects to a port of the engine. The connection ends with leave.
func (f *front) dial(ctx context.Context, network, address string) (*net.TCPConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if !f.hold(c) {
		return nil, net.ErrClosed
	}
	return c.(*net.TCPConn), nil
}

// leave ends a connection to the engine in order: closing it with unread data in it would reset it.
func (f *front) leave(c *net.TCPConn) {
	_ = c.CloseWrite()
	_ = c.SetDeadline(time.Now().Add(greetingPatience))
	_, _ = io.CopyN(io.Discard, c, maxDrained)
	f.release(c)
}

// request is a connection of the HTTP side to the engine.
type request struct {
	*net.TCPConn
	f    *front
	once sync.Once
}

func (r *request) Close() error {
	r.once.Do(func() { go r.f.leave(r.TCPConn) })
	return nil
}

// proxy is the HTTP side. Each request has a connection of its own to the engine, which waits for open ones before it ends.
func (f *front) proxy() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			to := "127.0.0.1:0"
			if p := f.engine.Load(); p != nil {
				to = "127.0.0.1:" + strconv.Itoa(p.HTTP)
			}
			r.SetURL(&url.URL{Scheme: "http", Host: to})
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := f.dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &request{TCPConn: c, f: f}, nil
			},
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the built-in ClickHouse does not answer now: try again", http.StatusServiceUnavailable)
		},
	}
}

func (f *front) accept() {
	for {
		c, err := f.native.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors: others end.
			_ = pause.For(context.Background(), 10*time.Millisecond)
			continue
		}
		f.passes.Go(func() { f.pass(c) })
	}
}

// pass serves one connection of the native protocol.
func (f *front) pass(c net.Conn) {
	if !f.hold(c) {
		return
	}
	defer f.release(c)
	_ = c.SetDeadline(time.Now().Add(greetingPatience))
	w := words{r: bufio.NewReader(c)}
	revision, err := w.hello()
	p := f.engine.Load()
	if err != nil || p == nil {
		return
	}
	up, err := f.dial(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.Native))
	if err != nil {
		return
	}
	defer f.leave(up)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = io.Copy(c, up)
		_ = c.Close()
	}()
	_, _ = up.Write(w.said.Bytes())
	w.said.Reset()
	if err := w.addendum(revision); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	rest, _ := w.r.Peek(w.r.Buffered())
	_, _ = up.Write(append(w.said.Bytes(), rest...))
	if _, err := io.Copy(up, c); err == nil {
		_ = up.CloseWrite()
		<-answered
	}
}

// words reads what a client of the native protocol says before its first query, and keeps it.
type words struct {
	r    *bufio.Reader
	said bytes.Buffer
}

// Revisions of the protocol from which on a client says more, as in the server's ProtocolDefines.
const (
	revisionAddendum         = 54458
	revisionChunked          = 54470
	revisionParallelReplicas = 54471
)

// hello reads the greeting and returns the revision that the client speaks.
func (w *words) hello() (revision uint64, err error) {
	packet, err := w.number()
	if err != nil {
		return 0, err
	}
	if packet != 0 {
		return 0, errors.New("no greeting")
	}
	if _, err := w.text(); err != nil {
		return 0, err
	}
	for range 3 { // The client's version, and the protocol's.
		if revision, err = w.number(); err != nil {
			return 0, err
		}
	}
	for _, field := range []string{"database", "user", "password"} {
		s, err := w.text()
		if err != nil {
			return 0, err
		}
		// Such users mark other ways to log in, each with a conversation of its own, which nobody here has.
		if field == "user" && strings.HasPrefix(s, " ") {
			return 0, errors.New("a way to log in that is not served")
		}
	}
	return revision, nil
}

// addendum reads what follows the server's answer.
func (w *words) addendum(revision uint64) error {
	var texts int
	switch {
	case revision >= revisionChunked:
		texts = 3
	case revision >= revisionAddendum:
		texts = 1
	}
	for range texts {
		if _, err := w.text(); err != nil {
			return err
		}
	}
	if revision >= revisionParallelReplicas {
		_, err := w.number()
		return err
	}
	return nil
}

func (w *words) ReadByte() (byte, error) {
	b, err := w.r.ReadByte()
	if err == nil {
		w.said.WriteByte(b)
	}
	return b, err
}

func (w *words) number() (uint64, error) { return binary.ReadUvarint(w) }

func (w *words) text() (string, error) {
	n, err := w.number()
	if err != nil {
		return "", err
	}
	if n > maxWord {
		return "", errors.New("too long")
	}
	at := w.said.Len()
	if _, err := io.CopyN(&w.said, w.r, int64(n)); err != nil {
		return "", err
	}
	return string(w.said.Bytes()[at:]), nil
}
