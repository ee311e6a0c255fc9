package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/memlog"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/webhook"
)

var day = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// The example is that of the Standard Webhooks specification.
func TestSignaturesAreThoseOfStandardWebhooks(t *testing.T) {
	const secret, id, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", "1614265330")
	h.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	require.NoError(t, webhook.Verify(secret, h, []byte(body), at))
	h.Set("webhook-signature", "v1,AAAA v2,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	require.NoError(t, webhook.Verify(secret, h, []byte(body), at), "one of several")
	for name, change := range map[string]func(http.Header) (string, string, time.Time){
		"body":   func(http.Header) (string, string, time.Time) { return secret, body + " ", at },
		"secret": func(http.Header) (string, string, time.Time) { return webhook.NewSecret().Reveal(), body, at },
		"late": func(http.Header) (string, string, time.Time) {
			return secret, body, at.Add(webhook.Tolerance + time.Second)
		},
		"early": func(http.Header) (string, string, time.Time) {
			return secret, body, at.Add(-webhook.Tolerance - time.Second)
		},
		"id": func(h http.Header) (string, string, time.Time) { h.Set("webhook-id", "x"); return secret, body, at },
		"time": func(h http.Header) (string, string, time.Time) {
			h.Set("webhook-timestamp", "1614265331")
			return secret, body, at
		},
		"no time":   func(h http.Header) (string, string, time.Time) { h.Del("webhook-timestamp"); return secret, body, at },
		"signature": func(h http.Header) (string, string, time.Time) { h.Del("webhook-signature"); return secret, body, at },
		"no secret": func(http.Header) (string, string, time.Time) { return "whsec_", body, at },
	} {
		changed := h.Clone()
		s, b, now := change(changed)
		require.Error(t, webhook.Verify(s, changed, []byte(b), now), name)
	}
}

func TestASecretIsShownOnceAndKeptSealed(t *testing.T) {
	k, err := seal.Load(filepath.Join(t.TempDir(), "key"))
	require.NoError(t, err)
	other, err := seal.Load(filepath.Join(t.TempDir(), "key"))
	require.NoError(t, err)
	s := webhook.NewSecret()
	require.Regexp(t, `^whsec_[A-Za-z0-9+/]{43}=$`, s.Reveal())
	require.NotContains(t, fmt.Sprintf("%v %s %+v %#v", s, s, s, s), s.Reveal())
	sealed, err := s.Seal(k, "acme", "w")
	require.NoError(t, err)
	require.NotContains(t, string(sealed), s.Reveal())
	got, err := webhook.Unseal(k, "acme", "w", sealed)
	require.NoError(t, err)
	require.Equal(t, s, got)
	for _, where := range []struct {
		k          *seal.Key
		tenant, id string
	}{{other, "acme", "w"}, {k, "globex", "w"}, {k, "acme", "x"}, {k, "acm", "ew"}} {
		_, err = webhook.Unseal(where.k, where.tenant, where.id, sealed)
		require.ErrorIs(t, err, seal.ErrOpen)
	}
}

func TestOnlyPublicAddressesAreCalled(t *testing.T) {
	for _, a := range []string{
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
		"255.255.255.255", "192.0.2.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
		"2002:7f00:1::", "2001:db8::1", "fec0::1", "2001::1", "::127.0.0.1",
	} {
		require.ErrorIs(t, webhook.Guard{}.Address(netip.MustParseAddr(a)), webhook.ErrPrivate, a)
		require.NoError(t, webhook.Guard{Private: true}.Address(netip.MustParseAddr(a)))
	}
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8"} {
		require.NoError(t, webhook.Guard{}.Address(netip.MustParseAddr(a)), a)
	}
	for url, good := range map[string]bool{
		"https://example.com/hook?x=1": true, "https://example.com:8443/": true, "https://8.8.8.8/": true,
		"http://example.com/": false, "ftp://example.com/": false, "https://user:pass@example.com/": false, "https://127.0.0.1/": false,
		"https://[::1]/": false, "https://10.0.0.1/": false, "": false, "example.com": false, "https://": false, "https:///x": false,
		"https://example.com/#x": false, "https://example.com/" + strings.Repeat("x", webhook.MaxURL): false, "https://exa mple.com": false,
	} {
		require.Equal(t, good, webhook.Guard{}.URL(url) == "", "%s: %s", url, webhook.Guard{}.URL(url))
	}
	require.Empty(t, webhook.Guard{Private: true}.URL("http://127.0.0.1:8080/"))
}

// What a name leads to is looked at when it is called, and where an answer sends us is not followed.
func TestTheClientCallsNothingPrivate(t *testing.T) {
	var called int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	port := s.URL[strings.LastIndexByte(s.URL, ':')+1:]
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"} {
		_, err := get(t.Context(), webhook.Guard{}.Client(5*time.Second), "http://"+host+":"+port)
		require.Error(t, err, host)
	}
	require.Zero(t, called)
	status, err := get(t.Context(), webhook.Guard{Private: true}.Client(5*time.Second), s.URL)
	require.NoError(t, err)
	require.Equal(t, http.StatusTemporaryRedirect, status)
	require.Equal(t, 1, called)
	_, err = get(t.Context(), webhook.Guard{}.Client(5*time.Second), "http://127.0.0.1:"+port)
	require.ErrorIs(t, err, webhook.ErrPrivate)
}

func get(ctx context.Context, c *http.Client, url string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

func create() webhook.Create {
	return webhook.Create{
		URL: "https://example.com/", Sealed: []byte("sealed"), SecretID: "s1", After: 7,
		Filter: events.Filter{Kinds: []subject.Kind{subject.KindExec}, Types: []string{"ExecCompleted"}},
	}
}

// do decides and evolves, at a time.
func do(t *testing.T, p webhook.Endpoint, at time.Time, c webhook.Command) (webhook.Endpoint, []proto.Message) {
	t.Helper()
	bodies, err := webhook.Decide(p, c)
	require.NoError(t, err)
	for i, b := range bodies {
		p = p.Evolve(envelope.Recorded{Meta: envelope.Meta{ID: fmt.Sprint(p.Seq + 1), Time: at}, Seq: p.Seq + uint64(i) + 1, Body: b})
	}
	return p, bodies
}

func TestTheLifeOfAnEndpoint(t *testing.T) {
	none := webhook.Endpoint{Tenant: "acme", ID: "w"}
	for _, c := range []webhook.Command{webhook.Rotate{Sealed: []byte("x")}, webhook.Delete{}, webhook.Replay{From: 1}, webhook.Test{}} {
		_, err := webhook.Decide(none, c)
		require.True(t, fault.Is(err, fault.ReasonWebhookNotFound), "%T", c)
	}
	p, _ := do(t, none, day, create())
	require.True(t, p.Active())
	require.EqualValues(t, 7, p.After)
	_, again := do(t, p, day, create())
	require.Empty(t, again)

	p, _ = do(t, p, day, webhook.Rotate{Sealed: []byte("two"), SecretID: "s2", At: day, PreviousUntil: day.Add(time.Hour)})
	require.Equal(t, []webhook.Sealed{{ID: "s2", Bytes: []byte("two")}, {ID: "s1", Bytes: []byte("sealed"), Until: day.Add(time.Hour)}}, p.Secrets)
	p, _ = do(t, p, day, webhook.Rotate{Sealed: []byte("three"), SecretID: "s3", At: day})
	require.Len(t, p.Secrets, 1)
	_, err := webhook.Decide(p, webhook.Rotate{Sealed: []byte("x"), At: day, PreviousUntil: day.Add(webhook.MaxOverlap + 1)})
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))

	p, _ = do(t, p, day, webhook.Disable{Reason: "gone"})
	require.Equal(t, "disabled", p.State())
	_, err = webhook.Decide(p, webhook.Test{})
	require.True(t, fault.Is(err, fault.ReasonIllegalState))
	p, _ = do(t, p, day, webhook.Replay{From: 3})
	require.True(t, p.Active())
	require.EqualValues(t, 3, p.ReplayFrom)
	require.Equal(t, p.Seq, p.ReplaySeq)

	p, _ = do(t, p, day, webhook.Test{})
	require.NotEmpty(t, p.TestID)
	p, _ = do(t, p, day, webhook.Delete{})
	require.False(t, p.Exists())
	require.Empty(t, p.Secrets, "nothing signs any more")
	_, err = webhook.Decide(p, webhook.Replay{From: 1})
	require.True(t, fault.Is(err, fault.ReasonWebhookNotFound))
}

func TestBadEndpointsAreRefusedByField(t *testing.T) {
	for field, change := range map[string]func(*webhook.Create){
		"url": func(c *webhook.Create) { c.URL = "http://127.0.0.1/" }, "description": func(c *webhook.Create) { c.Description = strings.Repeat("x", 999) },
		"secret": func(c *webhook.Create) { c.Sealed = nil }, "kinds": func(c *webhook.Create) { c.Filter.Kinds = []subject.Kind{"volume"} },
		"types": func(c *webhook.Create) { c.Filter.Types = []string{"a b"} }, "sandbox": func(c *webhook.Create) { c.Filter.Sandbox = "*" },
	} {
		c := create()
		change(&c)
		_, err := webhook.Decide(webhook.Endpoint{Tenant: "acme", ID: "w"}, c)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), field)
		require.Contains(t, fault.From(err).Fields, field)
	}
}

func TestAnEndpointGetsNothingOfOthersNorOfItself(t *testing.T) {
	p := webhook.Endpoint{Tenant: "acme", ID: "w", Filter: events.Filter{Tenant: "acme"}}
	for _, agg := range []subject.Aggregate{subject.Sandbox("acme", "s"), subject.Exec("acme", "s", "x"), subject.Workspace("acme", "s"), subject.Tenant("acme")} {
		require.True(t, p.Wants(agg, "x.Y"), agg)
	}
	for _, agg := range []subject.Aggregate{
		subject.Sandbox("globex", "s"), subject.Webhook("acme", "w"), subject.Letter("acme", "l"), subject.Log("l"), subject.Tenant("acme2"),
	} {
		require.False(t, p.Wants(agg, "x.Y"), agg)
	}
}

func TestACommandIsCarriedOutOnce(t *testing.T) {
	log := memlog.New()
	for range 2 {
		p, err := webhook.Execute(t.Context(), log, "acme", "w", "c1", "operator:ann", day, create())
		require.NoError(t, err)
		require.Equal(t, "https://example.com/", p.URL)
	}
	h, err := log.Load(t.Context(), subject.Webhook("acme", "w"))
	require.NoError(t, err)
	require.Len(t, h.Events, 1)
}

// Whatever a tenant may repeat is refused before the endpoint's history is full, and its end never is.
func TestAnEndpointsHistoryHasRoomForItsEnd(t *testing.T) {
	p, _ := do(t, webhook.Endpoint{Tenant: "acme", ID: "w"}, day, create())
	for name, c := range map[string]webhook.Command{
		"rotate": webhook.Rotate{Sealed: []byte("x"), SecretID: "another", At: day}, "replay": webhook.Replay{From: 1}, "test": webhook.Test{},
	} {
		p.Events = webhook.MaxEvents - 1
		_, bodies := do(t, p, day, c)
		require.Len(t, bodies, 1, name)
		p.Events = webhook.MaxEvents
		_, err := webhook.Decide(p, c)
		require.True(t, fault.Is(err, fault.ReasonQuota), "%s: %v", name, err)
	}
	for name, c := range map[string]webhook.Command{"delete": webhook.Delete{}, "disable": webhook.Disable{Reason: "410"}} {
		_, bodies := do(t, p, day, c)
		require.Len(t, bodies, 1, name)
	}
}
