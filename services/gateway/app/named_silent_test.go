package app_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestASandboxWhoseWorkerIsSilentIsAnErrorUntilItIsBack(t *testing.T) {
	w := newBoxes(t, nil)
	w.send("POST", "/sandboxes", strings.NewReader(`{"name":"demo"}`)).is(t, 201)
	w.send("POST", "/sandboxes", strings.NewReader(`{"name":"rests"}`)).is(t, 201)
	w.send("POST", "/sandboxes/rests/stop", nil).is(t, 200)
	id := w.send("GET", "/sandboxes/demo", nil).is(t, 200)["id"].(string)
	views, err := w.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	view, err := proto.Marshal(&commandsv1.SandboxView{
		TenantId: "default", SandboxId: id, State: sandbox.Ready, Worker: natstest.Worker, Requested: &eventsv1.SandboxRequested{Name: "demo"}, CreatedAt: timestamppb.Now(),
	})
	require.NoError(t, err)
	_, err = views.Put(t.Context(), "default."+id, view)
	require.NoError(t, err)
	listed := func(query string) (states []any) {
		for _, s := range w.send("GET", "/sandboxes"+query, nil).is(t, 200)["sandboxes"].([]any) {
			states = append(states, s.(map[string]any)["state"])
		}
		return states
	}
	require.Equal(t, []any{"RUNNING"}, listed(""))

	last := time.Now().Add(-20 * time.Second)
	w.beat(natstest.Worker, last)
	require.Equal(t, []any{"ERROR"}, listed(""))
	require.Equal(t, "STOPPED", w.send("GET", "/sandboxes/rests", nil).is(t, 200)["state"], "of one that does not run nothing is unknown")
	for _, record := range []map[string]any{
		w.send("GET", "/sandboxes/demo", nil).is(t, 200),
		w.send("PATCH", "/sandboxes/demo", strings.NewReader(`{"labels":{"a":"b"}}`)).is(t, 200),
		w.send("GET", "/sandboxes?state=ERROR", nil).is(t, 200)["sandboxes"].([]any)[0].(map[string]any),
	} {
		require.Equal(t, []any{"demo", "ERROR", "worker_offline"}, []any{record["name"], record["state"], record["reason"]})
		require.Contains(t, record["error_message"], last.UTC().Format(time.RFC3339))
		require.Contains(t, record["error_message"], "RUNNING again")
	}
	require.Empty(t, listed("?state=RUNNING"))

	// Behind its minute the heartbeat itself is gone.
	kv, err := w.JS.KeyValue(t.Context(), topology.BucketWorker)
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), natstest.Worker, jetstream.PurgeTTL(time.Minute)))
	require.Contains(t, w.send("GET", "/sandboxes/demo", nil).is(t, 200)["error_message"], "for over a minute")
	require.NotContains(t, string(w.send("GET", "/sandboxes/demo/logs", nil).body), "worker_offline", "it is a view, not something that happened to the sandbox")

	w.beat(natstest.Worker, time.Now())
	record := w.send("GET", "/sandboxes/demo", nil).is(t, 200)
	require.Equal(t, "RUNNING", record["state"])
	require.Nil(t, record["reason"])
	require.Equal(t, []any{"RUNNING"}, listed("?state=RUNNING"))
}
