package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// connected is what came of one connection of testdata/egress.py.
type connected struct {
	Status    int
	Why, Body string
}

// traveller is a sandbox with a policy, on a host that is joined with an internet.
type traveller struct {
	*pages
	net *internet
}

func newTraveller(t *testing.T) *traveller {
	n := newInternet(t)
	s := stack.Up(t, "--egress-resolver", wideAddr+":53", "--egress-refuse", ownAddr+"/32")
	p := &pages{t: t, s: s, base: "http://" + s.HTTP + "/api/v1/sandboxes"}
	return &traveller{pages: p, net: n}
}

// make makes a sandbox with an egress, or without one where it is empty.
func (v *traveller) make(name, egress string) {
	v.t.Helper()
	body := fmt.Sprintf(`{"name": %q}`, name)
	if egress != "" {
		body = fmt.Sprintf(`{"name": %q, "egress": %s}`, name, egress)
	}
	status, _, answer := v.get("POST", v.base, []byte(body))
	require.Equal(v.t, http.StatusCreated, status, "%s", answer)
	v.does("fs", "upload", name, "testdata/egress.py", "/workspace/egress.py")
}

// tries connects from a sandbox and gives what came of each.
func (v *traveller) tries(name string, what ...string) (all []connected) {
	v.t.Helper()
	quoted := "python3 /workspace/egress.py"
	for _, w := range what {
		quoted += " '" + w + "'"
	}
	for line := range strings.Lines(v.does("execute", name, quoted)) {
		var c connected
		require.NoError(v.t, json.Unmarshal([]byte(line), &c), "%s", line)
		all = append(all, c)
	}
	require.Len(v.t, all, len(what)/2)
	return all
}

// decided are the decisions about a sandbox, as its events tell them.
func (v *traveller) decided(name string) map[string]*eventsv1.EgressDecision {
	v.t.Helper()
	var record struct{ ID string }
	_, _, answer := v.get("GET", v.base+"/"+name, nil)
	require.NoError(v.t, json.Unmarshal(answer, &record))
	all := map[string]*eventsv1.EgressDecision{}
	stream, err := v.s.JS.Stream(v.t.Context(), "EVT")
	require.NoError(v.t, err)
	for seq := uint64(1); ; seq++ {
		m, err := stream.GetMsg(v.t.Context(), seq)
		if err != nil {
			return all
		}
		if m.Subject != "evt.default.egress."+record.ID {
			continue
		}
		e := &eventsv1.EgressDecided{}
		require.NoError(v.t, proto.Unmarshal(m.Data, e))
		for _, d := range e.GetDecisions() {
			at := fmt.Sprintf("%s:%d", d.GetHost(), d.GetPort())
			if was := all[at]; was != nil {
				d.Count += was.GetCount()
				d.BytesIn += was.GetBytesIn()
			}
			all[at] = d
		}
	}
}

func TestSandboxesReachOnlyWhatIsAllowed(t *testing.T) {
	if inNamespaces(t) {
		return
	}
	v := newTraveller(t)
	var host atomic.Int64
	l, err := net.Listen("tcp", hostAddr+":8081")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			host.Add(1)
			conn.Close()
		}
	}()
	nats := strings.TrimPrefix(v.s.NATS, "nats://127.0.0.1:")
	v.make("box", fmt.Sprintf(`{"allow": [
		{"host": "good.example"}, {"host": "six.example", "ports": [80]}, {"host": "*.wild.example", "ports": [80, 8081, %[1]s]},
		{"cidr": "0.0.0.0/0", "ports": [80, 8081, %[1]s]}, {"cidr": "::/0", "ports": [80, 8081, %[1]s]}]}`, nats))
	v.make("closed", "")

	got := v.tries("box", "get", "http://good.example/x", "get", "http://a.b.wild.example/", "get", "http://"+wideAddr+"/", "get", "http://six.example/",
		"ask", "CONNECT good.example:80", "ask", "CONNECT GOOD.example.:80", "ask", "CONNECT ["+wideAddr6+"]:80")
	for i, c := range got {
		require.Equal(t, 200, c.Status, "%d: %+v", i, c)
	}
	require.Equal(t, `GET good.example /x proxy=""`, got[0].Body)

	refused := []struct{ what, ask, why string }{
		{"get", "http://other.example/", "not_allowed"},
		{"get", "http://wild.example/", "not_allowed"},
		{"ask", "CONNECT good.example:22", "not_allowed"},
		{"get", "http://good.example/inside", "not_public"}, // a redirect
		{"ask", "CONNECT inside.wild.example:80", "not_public"},
		{"ask", "CONNECT meta.wild.example:80", "not_public"},
		{"ask", "CONNECT mixed.wild.example:80", "not_public"},
		{"ask", "CONNECT mapped.wild.example:80", "not_public"},
		{"ask", "CONNECT nat64.wild.example:80", "not_public"},
		{"ask", "CONNECT here.wild.example:" + nats, "not_public"},
		{"ask", "CONNECT host.wild.example:8081", "not_public"},
		{"ask", "CONNECT named.wild.example:80", "not_public"},
		{"ask", "CONNECT " + hostAddr + ":8081", "not_public"},
		{"ask", "CONNECT 127.0.0.1:" + nats, "not_public"},
		{"ask", "CONNECT 0.0.0.0:" + nats, "not_public"},
		{"ask", "CONNECT 169.254.169.254:80", "not_public"},
		{"ask", "GET http://10.9.0.1/", "not_public"},
		{"ask", "CONNECT [::1]:" + nats, "not_public"},
		{"ask", "CONNECT [::ffff:10.9.0.1]:80", "bad_target"},
		{"ask", "CONNECT [fe80::1]:80", "not_public"},
		{"ask", "CONNECT [2002:a09:1::1]:80", "not_public"},
		{"ask", "CONNECT 2130706433:" + nats, "bad_target"},
		{"ask", "CONNECT 0x7f.1:" + nats, "bad_target"},
		{"ask", "CONNECT 0177.0.0.1:" + nats, "bad_target"},
		{"ask", "CONNECT 127.1:" + nats, "bad_target"},
		{"ask", "CONNECT localhost:" + nats, "bad_target"},
		{"ask", "CONNECT good.example", "bad_target"},
		{"ask", "GET http://good.example@10.9.0.1/", "not_public"},
		{"ask", "GET /", "bad_target"},
		{"ask", "CONNECT none.wild.example:80", "unresolved"},
	}
	var asked []string
	for _, r := range refused {
		asked = append(asked, r.what, r.ask)
	}
	for i, c := range v.tries("box", asked...) {
		require.Equal(t, refused[i].why, c.Why, "%+v: %+v", refused[i], c)
		require.NotEqual(t, 200, c.Status)
	}
	// A name that is public when it is judged and another one when it is asked for again.
	flips := v.tries("box", "ask", "CONNECT flips.wild.example:80", "ask", "CONNECT flips.wild.example:80")
	require.Equal(t, []string{"", "not_public"}, []string{flips[0].Why, flips[1].Why})

	for _, box := range []string{"box", "closed"} {
		for _, c := range v.tries(box, "straight", wideAddr, "straight", hostAddr, "straight", metaAddr) {
			require.Zero(t, c.Status, "there is no network past the proxy")
		}
	}
	require.Zero(t, v.tries("closed", "get", "http://good.example/")[0].Status)
	require.Empty(t, v.does("execute", "closed", "env | grep -i _proxy || true"))

	met := v.net.asks("tell", "met")
	require.True(t, strings.HasPrefix(met, "0 inside"), met)
	require.NotContains(t, met, "other.example", "a name that nobody allows is not even asked for")
	require.Zero(t, host.Load())
	require.Eventually(t, func() bool {
		d := v.decided("box")
		return d["good.example:80"].GetCount() >= 3 && d["other.example:80"].GetReason() == "not_allowed" && d["flips.wild.example:80"] != nil
	}, 5*time.Minute, time.Second)
	d := v.decided("box")
	require.True(t, d["good.example:80"].GetAllowed())
	require.NotZero(t, d["good.example:80"].GetBytesIn())
	require.Equal(t, "bad_target", d["127.1:"+nats+":0"].GetReason())
	require.Empty(t, v.decided("closed"))
}

// A policy changes for a sandbox that runs: what it allowed and allows no more ends, and what it allows now works.
func TestAnotherEgressHoldsAtOnce(t *testing.T) {
	if inNamespaces(t) {
		return
	}
	v := newTraveller(t)
	v.make("box", "")
	v.changes("box", `{"allow": [{"host": "good.example"}]}`)
	require.Eventually(t, func() bool { return v.reaches("box", "good.example") }, time.Minute, 100*time.Millisecond)
	require.False(t, v.reaches("box", "other.example"))

	held := make(chan string, 1)
	holds := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), "execute", "box", "python3 /workspace/egress.py hold 'CONNECT good.example:80'")
	holds.Env = append(holds.Environ(), "SANDTRAIL_API_URL=http://"+v.s.HTTP)
	go func() { out, _ := holds.Output(); held <- string(out) }()
	require.Eventually(t, func() bool { return strings.Contains(v.net.asks("tell", "met"), "holds 1") }, time.Minute, 100*time.Millisecond)
	v.changes("box", `{"allow": [{"host": "other.example"}]}`)
	select {
	case out := <-held:
		require.Contains(t, out, "over")
	case <-time.After(time.Minute):
		t.Fatal("a connection that is not allowed any more goes on")
	}
	require.Eventually(t, func() bool { return strings.Contains(v.net.asks("tell", "met"), "holds 0") }, time.Minute, 100*time.Millisecond)
	require.Eventually(t, func() bool { return v.reaches("box", "other.example") }, time.Minute, 100*time.Millisecond)
	require.False(t, v.reaches("box", "good.example"))

	// Neither a service that starts again nor a sandbox that does forgets it.
	v.s.Kill("up")
	v.s.Restart()
	require.Eventually(t, func() bool { return v.reaches("box", "other.example") }, time.Minute, 100*time.Millisecond)
	v.does("stop", "box")
	v.does("start", "box")
	require.Eventually(t, func() bool { return v.reaches("box", "other.example") }, time.Minute, 100*time.Millisecond)
	require.False(t, v.reaches("box", "good.example"))

	status, _, answer := v.get("PATCH", v.base+"/box", []byte(`{"egress": {"allow": [{"host": "127.0.0.1"}, {"cidr": "10.0.0.0/8"}, {"cidr": "1.1.1.1", "ports": [0]}]}}`))
	require.Equal(t, http.StatusUnprocessableEntity, status)
	for _, field := range []string{"egress.allow[0].host", "egress.allow[1].cidr", "egress.allow[2].ports"} {
		require.Contains(t, string(answer), field)
	}
}

func (v *traveller) changes(name, egress string) {
	v.t.Helper()
	status, _, answer := v.get("PATCH", v.base+"/"+name, []byte(`{"egress": `+egress+`}`))
	require.Equal(v.t, http.StatusOK, status, "%s", answer)
	var record struct{ Egress json.RawMessage }
	require.NoError(v.t, json.Unmarshal(answer, &record))
	require.JSONEq(v.t, egress, string(record.Egress))
}

func (v *traveller) reaches(name, host string) bool {
	return v.tries(name, "get", "http://"+host+"/")[0].Status == http.StatusOK
}
