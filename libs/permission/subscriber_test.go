package permission_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const services = "SANDTRAIL"

// shared is a server with a log of two tenants, each of which has a subscriber.
type shared struct {
	// services may do everything in the account of the services.
	services jetstream.JetStream
	acme     *nats.Conn
	rival    *nats.Conn
}

func share(t *testing.T) shared {
	t.Helper()
	pairs := map[string]nkeys.KeyPair{}
	public := func(name string) string {
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		pairs[name] = pair
		key, err := pair.PublicKey()
		require.NoError(t, err)
		return key
	}
	text, err := permission.Accounts(services, []permission.User{{Nkey: public("services"), Rules: permission.Rules{Publish: []string{">"}, Subscribe: []string{">"}}}},
		permission.Subscriber{Name: "billing", Tenant: "acme", Nkey: public("acme")},
		permission.Subscriber{Name: "rivals", Tenant: "rival", Nkey: public("rival")})
	require.NoError(t, err)
	s := natstest.Configured(t, text)
	connect := func(name string) *nats.Conn {
		key, err := pairs[name].PublicKey()
		require.NoError(t, err)
		nc, err := nats.Connect(s.ClientURL(), nats.Nkey(key, pairs[name].Sign), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	js, err := jetstream.New(connect("services"))
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(t.Context(), js, topology.Options{Replicas: 1}))
	for name, tenant := range map[string]string{"billing": "acme", "rivals": "rival"} {
		_, err := js.CreateConsumer(t.Context(), topology.StreamEvents, topology.Subscriber(name, tenant, 0))
		require.NoError(t, err)
		for i := range 3 {
			_, err := js.Publish(t.Context(), subject.Exec(tenant, "box", fmt.Sprint(i)).Subject(), []byte(tenant+" "+fmt.Sprint(i)))
			require.NoError(t, err)
		}
	}
	return shared{services: js, acme: connect("acme"), rival: connect("rival")}
}

// next is the call for the next events of a consumer.
func next(consumer string) string {
	return permission.SubscriberPrefix + ".CONSUMER.MSG.NEXT." + topology.StreamEvents + "." + consumer
}

// taken are the events that a consumer gives, as the plain client takes them, each acknowledged and the acknowledgement confirmed.
func taken(t *testing.T, nc *nats.Conn, consumer string, most int) []string {
	t.Helper()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Unsubscribe()) }()
	ask, err := json.Marshal(map[string]any{"batch": most, "no_wait": true})
	require.NoError(t, err)
	require.NoError(t, nc.PublishRequest(next(consumer), inbox, ask))
	var all []string
	for {
		m, err := sub.NextMsg(30 * time.Second)
		require.NoError(t, err)
		if m.Header.Get("Status") != "" {
			return all
		}
		all = append(all, string(m.Data))
		_, err = nc.Request(m.Reply, nil, 30*time.Second)
		require.NoError(t, err, "the acknowledgement of %s", m.Data)
		if len(all) == most {
			return all
		}
	}
}

func TestASubscriberTakesTheEventsOfItsTenantOnce(t *testing.T) {
	s := share(t)
	mine := topology.ConsumerSubscriber("billing")
	require.Equal(t, []string{"acme 0", "acme 1"}, taken(t, s.acme, mine, 2))
	require.Equal(t, []string{"acme 2"}, taken(t, s.acme, mine, 5), "what was acknowledged does not come again")
	info, err := s.acme.Request(permission.SubscriberPrefix+".CONSUMER.INFO."+topology.StreamEvents+"."+mine, nil, 30*time.Second)
	require.NoError(t, err)
	require.Contains(t, string(info.Data), `"num_ack_pending":0`)
	require.Contains(t, string(info.Data), `"filter_subject":"evt.acme.\u003e"`)
}

func TestASubscriberSeesEventsOfItsTenantLive(t *testing.T) {
	s := share(t)
	all, err := s.acme.SubscribeSync(">")
	require.NoError(t, err)
	require.NoError(t, s.acme.Flush())
	for _, tenant := range []string{"rival", "acme"} {
		_, err = s.services.Publish(t.Context(), subject.Exec(tenant, "box", "9").Subject(), []byte(tenant))
		require.NoError(t, err)
	}
	m, err := all.NextMsg(30 * time.Second)
	require.NoError(t, err)
	require.Equal(t, subject.Live(subject.Exec("acme", "box", "9").Subject()), m.Subject, "that of the other came first and is not seen")
}

// asked is what comes back for a call, if anything does.
func asked(t *testing.T, nc *nats.Conn, call, body string) string {
	t.Helper()
	m, err := nc.Request(call, []byte(body), time.Second)
	if err != nil {
		return ""
	}
	require.NotNil(t, m)
	return string(m.Data)
}

// What a subscriber may call is its own consumer. Everything else of the log gives no answer, or one without a word of another tenant.
func TestASubscriberReachesNothingOfAnother(t *testing.T) {
	s := share(t)
	const stream = topology.StreamEvents
	theirs := topology.ConsumerSubscriber("rivals")
	for call, body := range map[string]string{
		"$JS.API.CONSUMER.MSG.NEXT." + stream + "." + theirs:                               `{"batch":1,"no_wait":true}`,
		"$JS.API.CONSUMER.INFO." + stream + "." + theirs:                                   "",
		"$JS.API.CONSUMER.DELETE." + stream + "." + theirs:                                 "",
		"$JS.API.CONSUMER.NAMES." + stream:                                                 "",
		"$JS.API.CONSUMER.LIST." + stream:                                                  "",
		"$JS.API.CONSUMER.CREATE." + stream + ".mine.evt.rival.>":                          `{"stream_name":"EVT","config":{"name":"mine","filter_subject":"evt.rival.>"}}`,
		"$JS.API.CONSUMER.CREATE." + stream + "." + topology.ConsumerSubscriber("billing"): `{"stream_name":"EVT","config":{"durable_name":"subscriber-billing","filter_subject":"evt.>"}}`,
		"$JS.API.STREAM.MSG.GET." + stream:                                                 `{"last_by_subj":"evt.rival.exec.box.0"}`,
		"$JS.API.DIRECT.GET." + stream:                                                     `{"last_by_subj":"evt.rival.exec.box.0"}`,
		"$JS.API.DIRECT.GET." + stream + ".evt.rival.exec.box.0":                           "",
		"$JS.API.STREAM.INFO." + stream:                                                    "",
		"$JS.API.STREAM.NAMES":                                                             "",
		"$JS.API.STREAM.PURGE." + stream:                                                   "",
		"$JS.API.STREAM.DELETE." + stream:                                                  "",
		"$JS.API.CONSUMER.PAUSE." + stream + "." + theirs:                                  `{"pause_until":"2100-01-01T00:00:00Z"}`,
	} {
		for _, prefix := range []string{"$JS.API", permission.SubscriberPrefix} {
			call := strings.Replace(call, "$JS.API", prefix, 1)
			require.NotContains(t, asked(t, s.acme, call, body), "rival", call)
		}
	}
	require.Equal(t, []string{"rival 0", "rival 1", "rival 2"}, taken(t, s.rival, theirs, 5), "nothing was taken, changed or stopped")
}

// Neither a message of its own nor an answer that it has the log send comes into the log.
func TestASubscriberWritesNothing(t *testing.T) {
	s := share(t)
	before, err := s.services.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	first := before.CachedInfo().State
	forged := subject.Exec("rival", "box", "0").Subject()
	// A request whose answer nobody waits for is dropped.
	own, err := s.acme.SubscribeSync(forged)
	require.NoError(t, err)
	require.NoError(t, s.acme.Publish(forged, []byte("forged")))
	require.NoError(t, s.acme.Publish(subject.SandboxCommand("rival", "box"), []byte("forged")))
	require.NoError(t, s.acme.PublishRequest(next(topology.ConsumerSubscriber("billing")), forged, []byte(`{"batch":3}`)))
	for range 1 + 3 { // his own message, and what he asked for
		_, err := own.NextMsg(30 * time.Second)
		require.NoError(t, err)
	}
	// What was asked for has come into the subscriber's own account only: his next request finds it delivered.
	require.Empty(t, taken(t, s.acme, topology.ConsumerSubscriber("billing"), 3))
	for _, name := range []string{topology.StreamEvents, topology.StreamCommands} {
		stream, err := s.services.Stream(t.Context(), name)
		require.NoError(t, err)
		if name == topology.StreamEvents {
			require.Equal(t, first.LastSeq, stream.CachedInfo().State.LastSeq)
		} else {
			require.Zero(t, stream.CachedInfo().State.LastSeq)
		}
	}
}

// The reason for accounts: in that of the services a user who may only take from a consumer has its events sent where he likes.
func TestWithoutAnAccountAReaderCouldWrite(t *testing.T) {
	s := share(t)
	nc := s.services.Conn()
	stream, err := s.services.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	first := stream.CachedInfo().State.LastSeq
	require.NoError(t, nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.EVT."+topology.ConsumerSubscriber("billing"), subject.Exec("rival", "box", "0").Subject(), []byte(`{"batch":1}`)))
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.LastSeq > first
	}, 30*time.Second, 10*time.Millisecond)
}

func TestSubscribersAreChecked(t *testing.T) {
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	key, err := pair.PublicKey()
	require.NoError(t, err)
	for name, s := range map[string]permission.Subscriber{
		"no name":           {Tenant: "acme", Nkey: key},
		"a name with a dot": {Name: "a.b", Tenant: "acme", Nkey: key},
		"all tenants":       {Name: "a", Tenant: "*", Nkey: key},
		"no tenant":         {Name: "a", Nkey: key},
		"no key":            {Name: "a", Tenant: "acme"},
		"a seed":            {Name: "a", Tenant: "acme", Nkey: "SU" + key[2:]},
		"more than a key":   {Name: "a", Tenant: "acme", Nkey: key + " }] jetstream: enabled"},
	} {
		_, err := permission.Accounts(services, nil, s)
		require.Error(t, err, name)
	}
}
