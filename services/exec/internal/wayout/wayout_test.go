package wayout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/egress"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/eventlog/memlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

const (
	tenant = "acme"
	soon   = 30 * time.Second
)

// wide is an address that is public; nothing here dials it.
var wide = netip.MustParseAddr("93.184.216.34")

type resolver map[string][]netip.Addr

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if all := r[strings.TrimSuffix(host, ".")]; len(all) > 0 && strings.HasSuffix(host, ".") {
		return slices.Clone(all), nil
	}
	return nil, errors.New("no such host")
}

// rig is a set on a log of its own, with a sandbox whose toolbox is a fake one and a server that stands for everything out there.
type rig struct {
	*natstest.Fixture
	t    *testing.T
	log  *jslog.Log
	set  *Set
	box  string
	door string
}

func newRig(t *testing.T, handle http.HandlerFunc) *rig {
	t.Helper()
	out := httptest.NewServer(handle)
	t.Cleanup(out.Close)
	r := &rig{Fixture: natstest.Start(t), t: t, box: ids.New()}
	r.log = jslog.New(r.JS)
	fake := toolboxtest.NewFake(t, r.box)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	r.door = l.Addr().String()
	fake.Door.Port = uint16(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, l.Close())
	own := []netip.Prefix{netip.MustParsePrefix("93.184.216.99/32")}
	r.set = New(Config{
		Worker: "w1", JS: r.JS, Events: r.log, Log: slog.New(slog.DiscardHandler),
		Toolbox: func(string) *client.Client { return client.New(fake.Dial, "") },
		Dialer: &Dialer{
			Resolver: resolver{"good.example": {wide}, "other.example": {wide}, "own.example": {netip.MustParseAddr("93.184.216.99")}, "mixed.example": {wide, netip.MustParseAddr("10.0.0.1")}},
			Own:      func() []netip.Prefix { return own },
			Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
				if to.Addr() != wide {
					return nil, errors.New("nobody is there")
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", out.Listener.Addr().String())
			},
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.set.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return r
}

// view puts the view of the sandbox as its projection does.
func (r *rig) view(state, worker string, e *eventsv1.Egress) {
	r.t.Helper()
	data, err := proto.Marshal(&commandsv1.SandboxView{
		TenantId: tenant, SandboxId: r.box, State: state, Worker: worker, Requested: &eventsv1.SandboxRequested{SandboxId: r.box, Egress: e},
	})
	require.NoError(r.t, err)
	kv, err := r.JS.KeyValue(r.t.Context(), topology.BucketSandbox)
	require.NoError(r.t, err)
	_, err = kv.Put(r.t.Context(), tenant+"."+r.box, data)
	require.NoError(r.t, err)
}

func hosts(names ...string) *eventsv1.Egress {
	e := &eventsv1.Egress{}
	for _, n := range names {
		e.Allow = append(e.Allow, &eventsv1.EgressRule{Host: n})
	}
	return e
}

// connect goes to the way out, once it is there.
func (r *rig) connect() net.Conn {
	r.t.Helper()
	var conn net.Conn
	require.Eventually(r.t, func() bool {
		var err error
		conn, err = net.Dial("tcp4", r.door)
		return err == nil
	}, soon, 5*time.Millisecond)
	r.t.Cleanup(func() { conn.Close() })
	require.NoError(r.t, conn.SetDeadline(time.Now().Add(2*soon)))
	return conn
}

// answered is an answer of the proxy, and the rest of the connection. Where that is open there is no body.
type answered struct {
	status    int
	why, body string
	rest      *bufio.Reader
	conn      net.Conn
}

// ask sends a request as it stands.
func (r *rig) ask(text string) answered {
	r.t.Helper()
	conn := r.connect()
	_, err := io.WriteString(conn, text)
	require.NoError(r.t, err)
	rest := bufio.NewReader(conn)
	method, _, _ := strings.Cut(text, " ")
	res, err := http.ReadResponse(rest, &http.Request{Method: method})
	require.NoError(r.t, err)
	defer res.Body.Close()
	var body []byte
	if method != http.MethodConnect || res.StatusCode != http.StatusOK {
		body, err = io.ReadAll(res.Body)
		require.NoError(r.t, err)
	}
	return answered{res.StatusCode, res.Header.Get("X-Sandtrail-Egress"), string(body), rest, conn}
}

// decisions are what the log has of the sandbox.
func (r *rig) decisions() (all []*eventsv1.EgressDecision) {
	r.t.Helper()
	h, err := r.log.Load(r.t.Context(), subject.Egress(tenant, r.box))
	require.NoError(r.t, err)
	for _, e := range h.Events {
		all = append(all, e.Body.(*eventsv1.EgressDecided).GetDecisions()...)
	}
	return all
}

func TestARequestIsSentForTheHostThatWasJudged(t *testing.T) {
	met := make(chan *http.Request, 10)
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		met <- q
		fmt.Fprintf(w, "%s %s", q.RequestURI, body)
	})
	r.view(sandbox.Ready, "w1", hosts("good.example"))
	// A second request behind the first is for nobody.
	got := r.ask("POST http://good.example/a?b HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\n" +
		"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\nContent-Length: 4\r\n\r\nbody" +
		"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
	require.Equal(t, "/a?b body", got.body)
	_, err := got.rest.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	q := <-met
	require.Equal(t, "good.example", q.Host)
	require.Equal(t, "2", q.Header.Get("X-Kept"))
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "X-Hop", "User-Agent"} {
		require.Empty(t, q.Header.Get(name), name)
	}
	require.Empty(t, met)
}

func TestRefusals(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) { t.Error("nobody may come here") })
	r.view(sandbox.Ready, "w1", hosts("good.example", "own.example", "mixed.example", "none.example"))
	const end = " HTTP/1.1\r\nHost: good.example\r\n"
	for _, c := range []struct {
		ask    string
		status int
		why    string
	}{
		{"CONNECT other.example:443" + end + "\r\n", 403, egress.NotAllowed},
		{"CONNECT good.example:8443" + end + "\r\n", 403, egress.NotAllowed},
		{"CONNECT own.example:443" + end + "\r\n", 403, egress.NotPublic},
		{"CONNECT mixed.example:443" + end + "\r\n", 403, egress.NotPublic},
		{"CONNECT none.example:443" + end + "\r\n", 502, egress.Unresolved},
		{"CONNECT good.example" + end + "\r\n", 400, egress.BadTarget},
		{"GET /" + end + "\r\n", 400, egress.BadTarget},
		{"GET https://good.example/" + end + "\r\n", 400, egress.BadTarget},
		{"hello\r\n\r\n", 400, egress.BadTarget},
		{"GET http://good.example/" + end + "X: " + strings.Repeat("x", maxHead) + "\r\n\r\n", 400, egress.BadTarget},
		{"POST http://other.example/" + end + "Content-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000), 403, egress.NotAllowed},
	} {
		got := r.ask(c.ask)
		require.Equal(t, c.status, got.status, "%.60q", c.ask)
		require.Equal(t, c.why, got.why, "%.60q", c.ask)
		got.conn.Close()
	}
	require.Eventually(t, func() bool { return len(r.decisions()) >= 7 }, soon, 20*time.Millisecond, "each is told")
	for _, d := range r.decisions() {
		require.NotEmpty(t, d.GetReason())
		require.Equal(t, d.GetReason() == egress.Unresolved, d.GetAllowed(), "%v", d)
	}
}

func TestAConnectionEndsWithWhatAllowedIt(t *testing.T) {
	var held atomic.Int64
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		held.Add(1)
		defer held.Add(-1)
		_, _ = io.WriteString(w, "held")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	})
	open := func() *bufio.Reader {
		got := r.ask("CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
		require.Equal(t, 200, got.status)
		_, err := io.WriteString(got.conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		_, err = got.rest.ReadString('\n')
		require.NoError(t, err)
		return got.rest
	}
	for name, end := range map[string]func(){
		"another policy":   func() { r.view(sandbox.Ready, "w1", hosts("other.example")) },
		"none":             func() { r.view(sandbox.Ready, "w1", nil) },
		"a stop":           func() { r.view(sandbox.Stopping, "w1", hosts("good.example")) },
		"another worker":   func() { r.view(sandbox.Ready, "w2", hosts("good.example")) },
		"one without rule": func() { r.view(sandbox.Ready, "w1", &eventsv1.Egress{}) },
	} {
		r.view(sandbox.Ready, "w1", hosts("good.example", "more.example"))
		require.Eventually(t, func() bool { return r.set.Open(r.box) && r.allowed("good.example") }, soon, time.Millisecond)
		rest := open()
		r.view(sandbox.Ready, "w1", hosts("good.example"))
		require.Eventually(t, func() bool { return !r.allowed("more.example") }, soon, time.Millisecond)
		require.EqualValues(t, 1, held.Load(), "what is allowed still goes on")
		end()
		_, err := io.Copy(io.Discard, rest)
		var slow net.Error
		require.False(t, errors.As(err, &slow) && slow.Timeout(), "%s: it goes on", name)
		require.Eventually(t, func() bool { return held.Load() == 0 }, soon, time.Millisecond, name)
	}
}

// allowed reports what the sandbox's session allows now.
func (r *rig) allowed(name string) bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	x := r.set.sessions[r.box]
	return x != nil && x.policy().Allows(egress.Target{Name: name, Port: 443})
}

func TestAWorkerHasSoManyConnections(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) {})
	for range most {
		require.True(t, r.set.enter())
	}
	r.view(sandbox.Ready, "w1", hosts("good.example"))
	got := r.ask("CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	require.Equal(t, []any{503, egress.Busy}, []any{got.status, got.why})
	got.conn.Close()
	r.set.leave()
	require.Equal(t, 200, r.ask("CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n").status)
}

// However much a sandbox asks for, its events are few and of a bounded size, and count all of it.
func TestDecisionsAreFewAndCountEverything(t *testing.T) {
	log := memlog.New()
	agg := subject.Egress(tenant, ids.New())
	r := newRecorder(log, agg, "w1", slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.run(ctx) }()
	const asked = 5000
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for i := range asked / 4 {
				r.add(decision{host: fmt.Sprintf("h%d.example", i), port: 443, allowed: part%2 == 0, reason: egress.NotAllowed}, 1, 2, 3)
			}
		})
	}
	all.Wait()
	stop()
	<-done
	h, err := log.Load(t.Context(), agg)
	require.NoError(t, err)
	require.NotEmpty(t, h.Events)
	require.LessOrEqual(t, len(h.Events), 10)
	var allowed, refused uint64
	for _, e := range h.Events {
		b := e.Body.(*eventsv1.EgressDecided)
		require.LessOrEqual(t, len(b.GetDecisions()), places)
		allowed, refused = allowed+b.GetMoreAllowed(), refused+b.GetMoreRefused()
		for _, d := range b.GetDecisions() {
			if d.GetAllowed() {
				allowed += d.GetCount()
			} else {
				refused += d.GetCount()
			}
		}
	}
	require.Equal(t, []uint64{asked / 2, asked / 2}, []uint64{allowed, refused})
}

func TestEventsOfDecisionsGetRarer(t *testing.T) {
	var day, month int
	var gone time.Duration
	for n := 0; gone < 30*24*time.Hour; n++ {
		require.GreaterOrEqual(t, pace(n+1), pace(n))
		gone += pace(n)
		if gone < 24*time.Hour {
			day++
		}
		month++
	}
	require.Equal(t, time.Second, pace(0), "the first is told soon")
	require.Less(t, day, 320)
	require.Less(t, month, 1300)
}

// Whatever a name leads to, and however often that changes, what is dialled was judged: one look-up, and an address of it that is public and nobody's
// own.
func TestWhatIsDialledWasJudged(t *testing.T) {
	own := netip.MustParsePrefix("93.184.216.0/28")
	policy, _ := egress.Read(hosts("*"))
	gen := rapid.Custom(func(t *rapid.T) netip.Addr {
		return rapid.SampledFrom([]netip.Addr{
			wide, netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("93.184.216.3"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("127.0.0.1"),
			netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("::ffff:1.1.1.1"), netip.MustParseAddr("64:ff9b::a00:1"), netip.MustParseAddr("2606:2800::1"),
			netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fe80::1"),
		}).Draw(t, "address")
	})
	rapid.Check(t, func(t *rapid.T) {
		answers := rapid.SliceOfN(rapid.SliceOfN(gen, 0, 5), 1, 3).Draw(t, "answers")
		up := rapid.SliceOfN(rapid.Bool(), 5, 5).Draw(t, "up")
		looked := 0
		var dialled []netip.Addr
		d := &Dialer{
			Own: func() []netip.Prefix { return []netip.Prefix{own} },
			Resolver: lookup(func() ([]netip.Addr, error) {
				looked++
				return slices.Clone(answers[(looked-1)%len(answers)]), nil
			}),
			Dial: func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
				dialled = append(dialled, to.Addr())
				if !up[len(dialled)-1] {
					return nil, errors.New("refused")
				}
				near, _ := net.Pipe()
				return near, nil
			},
		}
		conn, addr, reason := d.Reach(t.Context(), policy, egress.Target{Name: "a.example", Port: 443})
		require.Equal(t, 1, looked)
		require.Equal(t, conn == nil, reason != "")
		require.LessOrEqual(t, len(dialled), tried)
		clean := !slices.ContainsFunc(answers[0], func(a netip.Addr) bool { return !egress.Public(a) || own.Contains(a.Unmap()) })
		require.True(t, clean || len(dialled) == 0, "one address that may not be reached spoils the name")
		for _, a := range dialled {
			require.True(t, egress.Public(a) && !own.Contains(a) && !a.Is4In6())
			require.True(t, slices.ContainsFunc(answers[0], func(b netip.Addr) bool { return b.Unmap() == a }))
		}
		if conn != nil {
			require.Equal(t, dialled[len(dialled)-1], addr)
		}
	})
}

type lookup func() ([]netip.Addr, error)

func (l lookup) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) { return l() }

func TestThisHostIsNobodysToReach(t *testing.T) {
	f := natstest.Start(t)
	o := &Own{NC: f.NC, Named: []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")}, Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	require.Contains(t, o.Addresses(), netip.MustParsePrefix("8.8.8.0/24"))
	found, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range found {
		p, err := netip.ParsePrefix(a.String())
		require.NoError(t, err)
		require.Contains(t, o.Addresses(), single(p.Addr()), "an address of this host")
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}
