package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// Network namespaces that the test makes: one is the host's, another the internet's. Their addresses are public ones, or what a policy has to
// take for such, and lead nowhere but there.
const (
	// netRole says to a process of this test what it is there for.
	netRole = "SANDTRAIL_TEST_NET"
	// hostAddr is this host's, wideAddr and wideAddr6 are out there; insideAddr and metaAddr are there too, where nobody may come.
	hostAddr, wideAddr, wideAddr6 = "93.184.216.1", "93.184.216.34", "2606:2800:220:1::34"
	insideAddr, metaAddr, ownAddr = "10.9.0.1", "169.254.169.254", "93.184.216.99"
)

// zone is what the internet's DNS answers. flips.wild.example is public when it is asked for the first time.
var zone = map[string][]string{
	"good.example": {wideAddr}, "six.example": {wideAddr6}, "a.b.wild.example": {wideAddr}, "other.example": {wideAddr}, "wild.example": {wideAddr},
	"inside.wild.example": {insideAddr}, "meta.wild.example": {metaAddr}, "mixed.wild.example": {wideAddr, insideAddr}, "host.wild.example": {hostAddr},
	"mapped.wild.example": {"::ffff:10.9.0.1"}, "nat64.wild.example": {"64:ff9b::a09:1"}, "named.wild.example": {ownAddr}, "here.wild.example": {"127.0.0.1"},
	"flips.wild.example": {wideAddr},
}

// inNamespaces runs the test that calls it once more in a network namespace of its own. False: this is that one.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv(netRole) == "host" {
		return false
	}
	out, err := namespaced(t, "host", "^"+t.Name()+"$").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return true
}

// namespaced is a process of this test binary with a network namespace of its own.
func namespaced(t *testing.T, role, test string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+test, "-test.count=1", "-test.timeout=20m")
	cmd.Env = append(os.Environ(), netRole+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	require.NoError(t, err, "ip %v: %s", args, out)
}

// internet is the one of the test, seen from the host.
type internet struct {
	t     *testing.T
	say   io.Writer
	hears *bufio.Reader
}

// newInternet joins this namespace with a new one in which TestTheInternet answers.
func newInternet(t *testing.T) *internet {
	t.Helper()
	cmd := namespaced(t, "internet", "^TestTheInternet$")
	say, err := cmd.StdinPipe()
	require.NoError(t, err)
	hears, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		say.Close()
		_ = cmd.Process.Kill() // it has nothing to tell any more
		_ = cmd.Wait()
	})
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", "up0", "type", "veth", "peer", "name", "net0")
	ip(t, "link", "set", "net0", "netns", fmt.Sprint(cmd.Process.Pid))
	ip(t, "addr", "add", hostAddr+"/24", "dev", "up0")
	ip(t, "-6", "addr", "add", "2606:2800:220:1::1/64", "dev", "up0", "nodad")
	ip(t, "link", "set", "up0", "up")
	ip(t, "route", "add", "default", "via", wideAddr)
	n := &internet{t: t, say: say, hears: bufio.NewReader(hears)}
	n.asks("begin", "ready")
	return n
}

// asks says a line and waits for an answer that begins so.
func (n *internet) asks(line, answer string) string {
	n.t.Helper()
	_, err := io.WriteString(n.say, line+"\n")
	require.NoError(n.t, err)
	for {
		got, err := n.hears.ReadString('\n')
		require.NoError(n.t, err)
		if rest, ok := strings.CutPrefix(strings.TrimSpace(got), "internet: "+answer); ok {
			return strings.TrimSpace(rest)
		}
	}
}

// TestTheInternet is the other end of newInternet, in a process of its own.
func TestTheInternet(t *testing.T) {
	if os.Getenv(netRole) != "internet" {
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	require.True(t, lines.Scan())
	ip(t, "link", "set", "lo", "up")
	for _, a := range []string{insideAddr, metaAddr, ownAddr} {
		ip(t, "addr", "add", a+"/32", "dev", "lo")
	}
	ip(t, "addr", "add", wideAddr+"/24", "dev", "net0")
	ip(t, "-6", "addr", "add", wideAddr6+"/64", "dev", "net0", "nodad")
	ip(t, "link", "set", "net0", "up")
	w := &wide{}
	w.serve(t)
	fmt.Fprintln(os.Stdout, "internet: ready")
	for lines.Scan() {
		fmt.Fprintf(os.Stdout, "internet: met %d inside, holds %d, asked for: %s\n", w.inside.Load(), w.held.Load(), w.asked())
	}
}

// wide is what answers on the internet.
type wide struct {
	// inside counts connections to addresses where nobody may come.
	inside atomic.Int64
	// held counts connections that are held open.
	held atomic.Int64
	mu   sync.Mutex
	// questions are the names that were asked for, flips how often flips.wild.example was.
	questions []string
	flips     int
}

func (w *wide) asked() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.questions, " ")
}

func (w *wide) serve(t *testing.T) {
	l, err := net.Listen("tcp", ":80")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(w.answer), ConnState: func(c net.Conn, s http.ConnState) {
		if host, _, _ := net.SplitHostPort(c.LocalAddr().String()); s == http.StateNew && host != wideAddr && host != wideAddr6 && host != "::ffff:"+wideAddr {
			w.inside.Add(1)
		}
	}}
	go func() { _ = server.Serve(l) }()
	dns, err := net.ListenPacket("udp", wideAddr+":53")
	require.NoError(t, err)
	go w.resolve(dns)
}

func (w *wide) answer(out http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/inside":
		http.Redirect(out, r, "http://"+insideAddr+"/", http.StatusFound)
	case "/held":
		w.held.Add(1)
		defer w.held.Add(-1)
		_, _ = io.WriteString(out, "held")
		_ = http.NewResponseController(out).Flush()
		<-r.Context().Done()
	default:
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(out, "%s %s %s%s proxy=%q", r.Method, r.Host, r.URL.Path, body, r.Header.Get("Proxy-Connection"))
	}
}

// resolve answers A and AAAA questions until its socket closes.
func (w *wide) resolve(dns net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := dns.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.Additionals = true, nil
		for _, a := range w.addresses(q) {
			head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			switch {
			case q.Type == dnsmessage.TypeA && a.Is4():
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
			case q.Type == dnsmessage.TypeAAAA && !a.Is4():
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = dns.WriteTo(out, from)
		}
	}
}

func (w *wide) addresses(q dnsmessage.Question) (all []netip.Addr) {
	name := strings.TrimSuffix(q.Name.String(), ".")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.questions = append(w.questions, name)
	found := zone[name]
	if name == "flips.wild.example" && q.Type == dnsmessage.TypeA {
		if w.flips++; w.flips > 1 {
			found = []string{insideAddr}
		}
	}
	for _, s := range found {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}
