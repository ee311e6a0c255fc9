package wayout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandtrail/sandtrail/libs/egress"
)

const (
	// maxHead is the most bytes of the head of a request, headTime how long it may take to come.
	maxHead, headTime = 16 << 10, 20 * time.Second
	// idleTime ends a connection through which nothing passes.
	idleTime = 10 * time.Minute
	// answerTime is how long a program may take to take a refusal.
	answerTime = 5 * time.Second
	// carried is how much of a connection is held in each direction.
	carried = 32 << 10
)

// request is what a program asks of the proxy: CONNECT, or a request in absolute form.
type request struct {
	*http.Request
	// target is what it asks for. Where ok is false it is none, and said what it looked like.
	target egress.Target
	ok     bool
	said   string
}

// readRequest reads a head. body goes on behind it: a request in absolute form has its body there, CONNECT all that follows.
func readRequest(conn net.Conn) (r request, body *bufio.Reader, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(headTime)) // a connection that is gone fails by itself
	head := &io.LimitedReader{R: conn, N: maxHead}
	body = bufio.NewReader(head)
	r.Request, err = http.ReadRequest(body)
	if err != nil {
		return r, body, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	head.N = math.MaxInt64
	switch {
	case r.Method == http.MethodConnect:
		r.said = r.RequestURI
		r.target, r.ok = egress.ParseTarget(r.RequestURI, 0)
	case r.URL.Scheme == "http" && r.URL.Host != "":
		r.said = r.URL.Host
		r.target, r.ok = egress.ParseTarget(r.URL.Host, 80)
	default:
		r.said = r.URL.Host
	}
	return r, body, nil
}

// place is what a request asks for as it is recorded: of what is no target only what can be shown.
func (r request) place() (host string, port uint16) {
	if r.ok {
		return r.target.Host(), r.target.Port
	}
	return readable(r.said), 0
}

// readable leaves of what a program sent at most 128 bytes, and only ASCII that is seen.
func readable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), 128)])
	if s == "" {
		return "?"
	}
	return s
}

// serve answers one connection of a program.
func (s *session) serve(ctx context.Context, near net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { near.Close() })()
	defer near.Close()
	r, body, err := readRequest(near)
	if err != nil {
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			s.refuse(near, body, decision{host: "?", reason: egress.BadTarget})
		}
		return
	}
	d := decision{reason: egress.BadTarget}
	d.host, d.port = r.place()
	if !r.ok {
		s.refuse(near, body, d)
		return
	}
	if !s.set.enter() {
		d.reason = egress.Busy
		s.refuse(near, body, d)
		return
	}
	defer s.set.leave()
	f := &flow{target: r.target, near: near, stop: cancel}
	if !s.reach(ctx, f, &d) {
		s.refuse(near, body, d)
		return
	}
	defer s.end(f, d)
	s.decided(d, 1, 0, 0)
	if r.Method == http.MethodConnect {
		if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err == nil {
			f.carry(body, func() error { return f.copy(f.far, body, &f.out) })
		}
		return
	}
	f.carry(body, func() error { return f.ask(r.Request) })
}

// reach opens the far end of a flow by the policy of now, or says in d why not. A policy that changes meanwhile is heard.
func (s *session) reach(ctx context.Context, f *flow, d *decision) bool {
	conn, addr, reason := s.set.Dialer.Reach(ctx, s.policy(), f.target)
	d.reason = reason
	// What the policy allowed was allowed, whether or not it came about.
	d.allowed = reason == "" || reason == egress.Unreachable || reason == egress.Unresolved
	if conn == nil {
		return false
	}
	f.far, f.addr = conn, addr
	if s.begin(f) {
		return true
	}
	conn.Close()
	d.allowed, d.reason = false, egress.NotAllowed
	return false
}

// refuse tells a program why it gets no connection.
func (s *session) refuse(near net.Conn, body io.Reader, d decision) {
	s.decided(d, 1, 0, 0)
	status, why := http.StatusForbidden, "the sandbox may not connect there"
	switch d.reason {
	case egress.BadTarget:
		status, why = http.StatusBadRequest, "this is no request for a proxy (CONNECT NAME:PORT, or one for http://…) with a name or an address in its usual form"
	case egress.NotAllowed:
		why = "no rule of the sandbox's egress allows it"
	case egress.NotPublic:
		why = "it is, or leads to, an address that no sandbox may reach"
	case egress.Unresolved:
		status, why = http.StatusBadGateway, "the name leads nowhere"
	case egress.Unreachable:
		status, why = http.StatusBadGateway, "nobody answers there"
	case egress.Busy:
		status, why = http.StatusServiceUnavailable, "there are too many connections; try again"
	}
	text := fmt.Sprintf("egress: %s:%d: %s: %s\n", d.host, d.port, d.reason, why)
	_ = near.SetDeadline(time.Now().Add(answerTime))
	_, err := fmt.Fprintf(near, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\nX-Sandtrail-Egress: %s\r\n\r\n%s",
		status, http.StatusText(status), len(text), d.reason, text)
	if err == nil {
		// What the program still sends would have the end of the connection overtake the answer.
		_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<20))
	}
}

// flow is a connection of a program with its far end.
type flow struct {
	target    egress.Target
	addr      netip.Addr
	near, far net.Conn
	stop      func()
	out, in   atomic.Uint64
	idle      *time.Timer
}

// carry carries until either end has ended. ask sends what the program does.
func (f *flow) carry(body io.Reader, ask func() error) {
	f.idle = time.AfterFunc(idleTime, f.stop)
	defer f.idle.Stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if ask() == nil {
			// Behind a request only its connection's end means anything.
			_, _ = io.Copy(io.Discard, body)
		}
		f.far.Close()
	}()
	_ = f.copy(f.near, f.far, &f.in)
	f.near.Close()
	f.far.Close()
	<-sent
}

// copy carries one direction.
func (f *flow) copy(to io.Writer, from io.Reader, n *atomic.Uint64) error {
	buf := make([]byte, carried)
	for {
		got, err := from.Read(buf)
		if got > 0 {
			f.idle.Reset(idleTime)
			if _, err := to.Write(buf[:got]); err != nil {
				return err
			}
			n.Add(uint64(got))
		}
		if err != nil {
			return err
		}
	}
}

// ask sends a request in absolute form on as its far end expects it: for the host that was judged, for one answer, and without what was meant for a
// proxy.
func (f *flow) ask(r *http.Request) error {
	for _, listed := range r.Header.Values("Connection") {
		for name := range strings.SplitSeq(listed, ",") {
			r.Header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Trailer", "Upgrade"} {
		r.Header.Del(name)
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header["User-Agent"] = []string{""} // none is added
	}
	r.Host, r.Close = r.URL.Host, true
	return r.Write(&counted{f})
}

// counted counts what is sent.
type counted struct{ f *flow }

func (c *counted) Write(p []byte) (int, error) {
	c.f.idle.Reset(idleTime)
	n, err := c.f.far.Write(p)
	c.f.out.Add(uint64(n)) //nolint:gosec // not negative
	return n, err
}
