package events_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestTopicsAreFiltersAndBack(t *testing.T) {
	for topic, want := range map[string]struct {
		filter   events.Filter
		subjects []string
	}{
		"*/*/*/*":                                {events.Filter{}, []string{"evt.>"}},
		"acme/*/*/*":                             {events.Filter{Tenant: "acme"}, []string{"evt.acme.>"}},
		"acme/exec/*/ExecCompleted":              {events.Filter{Tenant: "acme", Kinds: []subject.Kind{"exec"}, Types: []string{"ExecCompleted"}}, []string{"evt.acme.exec.*.*"}},
		"*/exec,sandbox/*/ExecLost,SandboxReady": {events.Filter{Kinds: []subject.Kind{"exec", "sandbox"}, Types: []string{"ExecLost", "SandboxReady"}}, []string{"evt.*.exec.*.*", "evt.*.sandbox.*"}},
		"acme/*/s1/*":                            {events.Filter{Tenant: "acme", Sandbox: "s1"}, []string{"evt.acme.exec.s1.*", "evt.acme.sandbox.s1", "evt.acme.workspace.s1"}},
		"acme/tenant/*/*":                        {events.Filter{Tenant: "acme", Kinds: []subject.Kind{"tenant"}}, []string{"evt.acme.tenant"}},
	} {
		got, err := events.ParseTopic(topic)
		require.NoError(t, err, topic)
		require.Equal(t, want.filter, got)
		require.Equal(t, topic, got.Topic())
		require.Equal(t, want.subjects, got.Subjects())
	}
	same := events.Filter{Types: []string{"B", "A", "B"}}
	require.Equal(t, "*/*/*/A,B", same.Topic())
	for _, topic := range []string{
		"", "acme", "acme/*/*", "acme/*/*/*/*", "ac.me/*/*/*", ">/*/*/*", "acme/volume/*/*", "acme/*/s.1/*", "acme/tenant/s1/*", "acme/*/*/a b", "a*/*/*/*", "/*/*/*/",
	} {
		_, err := events.ParseTopic(topic)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), "%q: %v", topic, err)
	}
}

func TestFiltersMatch(t *testing.T) {
	const ready = "sandtrail.events.v1.SandboxReady"
	for _, c := range []struct {
		filter events.Filter
		agg    subject.Aggregate
		want   bool
	}{
		{events.Filter{}, subject.Sandbox("acme", "s"), true},
		{events.Filter{Tenant: "acme"}, subject.Sandbox("acme", "s"), true},
		{events.Filter{Tenant: "acme"}, subject.Sandbox("acme2", "s"), false},
		{events.Filter{Types: []string{"SandboxReady"}}, subject.Sandbox("acme", "s"), true},
		{events.Filter{Types: []string{"Ready"}}, subject.Sandbox("acme", "s"), false},
		{events.Filter{Kinds: []subject.Kind{subject.KindExec}}, subject.Sandbox("acme", "s"), false},
		{events.Filter{Sandbox: "s"}, subject.Exec("acme", "s", "x"), true},
		{events.Filter{Sandbox: "s"}, subject.Exec("acme", "x", "s"), false},
		{events.Filter{Sandbox: "s"}, subject.Letter("acme", "s"), false},
	} {
		require.Equal(t, c.want, c.filter.Matches(c.agg, ready), "%+v %+v", c.filter, c.agg)
	}
}

func TestAnEventAsCloudEventIsTheSameBytesEachTime(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 5, time.UTC)
	body := &eventsv1.ExecCompleted{ExitCode: 3, Reason: "exited", WallTimeUs: 1 << 60}
	m, _, err := envelope.Encode(subject.Exec("acme", "s", "x").Subject(), envelope.Event{
		Meta: envelope.Meta{ID: "e1", Tenant: "acme", Actor: "key:ci", Cause: "c1", Correlation: "r1", Time: at, Traceparent: "00-1-2-01"}, Body: body,
	}, nil)
	require.NoError(t, err)
	e, err := envelope.Decode(m.Subject, 7, m.Header, m.Data)
	require.NoError(t, err)
	var first []byte
	for range 50 {
		c, err := events.CloudEventOf(e)
		require.NoError(t, err)
		data, err := json.Marshal(c)
		require.NoError(t, err)
		if first == nil {
			first = data
		}
		require.Equal(t, string(first), string(data))
	}
	require.JSONEq(t, `{"specversion":"1.0","id":"e1","source":"/sandtrail/acme","type":"sandtrail.events.v1.ExecCompleted","subject":"exec/s/x",
		"time":"2026-11-30T10:00:00.000000005Z","datacontenttype":"application/json",
		"data":{"exit_code":3,"reason":"exited","wall_time_us":"1152921504606846976"},
		"sequence":"7","tenantid":"acme","schemaversion":1,"actor":"key:ci","causationid":"c1","correlationid":"r1",
		"digest":"`+m.Header.Get(envelope.HeaderDigest)+`","traceparent":"00-1-2-01"}`, string(first))

	e.Body, e.Type, e.Actor = nil, "sandtrail.events.v9.Unheard", "\xff"
	c, err := events.CloudEventOf(e)
	require.NoError(t, err)
	require.Equal(t, e.Data, c.DataBase64)
	require.Equal(t, "application/protobuf", c.DataContentType)
	require.Equal(t, "\uFFFD", c.Actor)
}
