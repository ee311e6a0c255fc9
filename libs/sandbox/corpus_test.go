package sandbox_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/webhook"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

var update = flag.Bool("update", false, "write the corpus of the events that have none yet")

// corpus has every event as version 1 wrote it: NAME.binpb as it stands in the log, NAME.json what it must say. What fields were
// added later has another pair, NAME+REVISION.
const corpus = "../../proto/corpus/v1"

// revisions are the events that fields were added to, with the name of what was added.
var revisions = map[string][]string{
	"ExecCompleted": {"limits"}, "SandboxReady": {"endpoint"}, "SandboxStarting": {"waiting"}, "ExecStarted": {"key", "stdin", "terminal"},
	"ExecRequested": {"key", "stdin", "terminal"}, "SandboxRequested": {"name", "idle", "egress"}, "SandboxStopped": {"reason"},
}

// parts are messages of the events package that are part of events and not events themselves.
var parts = map[string]bool{
	"Workspace": true, "Limits": true, "Placement": true, "Phase": true, "ExecSpec": true, "Gap": true, "Output": true, "Letter": true,
	"Endpoint": true, "EventFilter": true, "QuotaLimit": true, "Egress": true, "EgressRule": true, "EgressDecision": true,
}

func eventTypes() []protoreflect.MessageType {
	var out []protoreflect.MessageType
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		d := mt.Descriptor()
		if d.ParentFile().Package() == "sandtrail.events.v1" && !parts[string(d.Name())] && !d.IsMapEntry() {
			out = append(out, mt)
		}
		return true
	})
	return out
}

// fill sets every field of a message to a value of its own, so that no field is missing in the corpus.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		n := int64(f.Number()) + int64(depth)*100
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
		case f.IsList() && f.Message() != nil:
			l := m.Mutable(f).List()
			v := l.NewElement()
			fill(v.Message(), depth+1)
			l.Append(v)
		case f.IsList():
			m.Mutable(f).List().Append(value(f, n))
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, value(f, n))
		}
	}
}

func value(f protoreflect.FieldDescriptor, n int64) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1767323045 + n)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{byte(n), 0xff})
	default:
		switch {
		case f.Name() == "sandbox_id":
			return protoreflect.ValueOfString(sandboxID)
		case f.Name() == "exec_id":
			return protoreflect.ValueOfString(execID)
		}
		return protoreflect.ValueOfString(string(f.Name()))
	}
}

func corpusPath(name, ext string) string { return filepath.Join(corpus, name+ext) }

func TestEveryEventEverWrittenStillReadsTheSame(t *testing.T) {
	types := eventTypes()
	require.NotEmpty(t, types)
	known := 0
	for _, mt := range types {
		name := string(mt.Descriptor().Name())
		names := []string{name}
		for _, added := range revisions[name] {
			names = append(names, name+"+"+added)
		}
		for _, name := range names {
			known++
			t.Run(name, func(t *testing.T) {
				if _, err := os.Stat(corpusPath(name, ".binpb")); *update && os.IsNotExist(err) {
					writeCorpus(t, name, mt)
				}
				readsTheSame(t, name, mt)
			})
		}
	}
	files, err := filepath.Glob(filepath.Join(corpus, "*.binpb"))
	require.NoError(t, err)
	require.Len(t, files, known, "an event type that was written once is gone")
}

func readsTheSame(t *testing.T, name string, mt protoreflect.MessageType) {
	t.Helper()
	m := readCorpus(t, name, mt)
	text, err := os.ReadFile(corpusPath(name, ".json"))
	require.NoError(t, err)
	want := mt.New().Interface()
	require.NoError(t, protojson.Unmarshal(text, want))
	require.Empty(t, cmp.Diff(want, m, protocmp.Transform()))
	require.Empty(t, m.ProtoReflect().GetUnknown(), "a field was removed")
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	data, err := os.ReadFile(corpusPath(name, ".binpb"))
	require.NoError(t, err)
	require.Equal(t, data, again)
}

func writeCorpus(t *testing.T, name string, mt protoreflect.MessageType) {
	t.Helper()
	m := mt.New()
	fill(m, 0)
	if c, ok := m.Interface().(*eventsv1.ExecCompleted); ok {
		c.Reason = sandbox.ReasonExited
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	require.NoError(t, err)
	text := protojson.Format(m.Interface())
	require.NoError(t, os.MkdirAll(corpus, 0o755))
	require.NoError(t, os.WriteFile(corpusPath(name, ".binpb"), data, 0o644))
	require.NoError(t, os.WriteFile(corpusPath(name, ".json"), []byte(text+"\n"), 0o644))
}

func readCorpus(t *testing.T, name string, mt protoreflect.MessageType) proto.Message {
	t.Helper()
	data, err := os.ReadFile(corpusPath(name, ".binpb"))
	require.NoError(t, err)
	m := mt.New().Interface()
	require.NoError(t, proto.Unmarshal(data, m))
	return m
}

// stories are histories made of corpus events. Together they hold every event type.
var stories = []struct{ agg, events, state string }{
	{"sandbox", "SandboxRequested SandboxScheduled SandboxStarting SandboxReady SandboxUsageSampled SandboxStopping SandboxStopped " +
		"SandboxStarting SandboxStopped+reason SandboxStarting SandboxReady SandboxDestroying SandboxDestroyed", "destroyed"},
	{"sandbox", "SandboxRequested SandboxStarting SandboxStarting+waiting SandboxReady+endpoint SandboxFailed", "failed"},
	{"sandbox", "SandboxRequested+name SandboxDestroying SandboxDestroyed", "destroyed"},
	{"name", "NameReserved", sandboxID},
	{"name", "NameReserved NameReleased", ""},
	{"sandbox", "SandboxRequested SandboxExtended SandboxStarting SandboxReady SandboxFailed", "failed"},
	{"sandbox", "SandboxRequested+idle SandboxStarting SandboxReady SandboxUsed SandboxDestroying SandboxDestroyed", "destroyed"},
	{"sandbox", "SandboxRequested SandboxStarting SandboxReady SandboxLabelled SandboxFailed", "failed"},
	{"sandbox", "SandboxRequested SandboxStarting SandboxReady SandboxSnapshotting SandboxSnapshotted SandboxSnapshotFailed", "ready"},
	{"sandbox", "SandboxRequested+egress SandboxEgressSet SandboxDestroying SandboxDestroyed", "destroyed"},
	{"egress", "EgressDecided", "reason"},
	{"exec", "ExecRequested ExecStarted ExecCancelRequested ExecCompleted", "completed"},
	{"exec", "ExecStarted ExecCompleted+limits", "completed"},
	{"exec", "ExecStarted ExecLost", "lost"},
	{"exec", "ExecRequested+key ExecStarted+key ExecLost", "lost"},
	{"exec", "ExecRequested+terminal ExecStarted+terminal ExecResized ExecCompleted", "completed"},
	{"tenant", "TenantCreated KeyCreated KeyRevoked QuotaSet", "created"},
	{"tenant", "TenantCreated QuotaSet BudgetSet BudgetReached BudgetRemoved", "created"},
	{"webhook", "WebhookCreated WebhookRotated WebhookReplayRequested WebhookTestRequested WebhookTested WebhookDisabled WebhookDeleted", "deleted"},
	{"workspace", "WorkspaceReleased WorkspaceDeleted", "deleted"},
	{"letter", "LetterRedriven", "redriven"},
	{"letter", "LetterDropped", "dropped"},
	{"log", "LogSigned", "signed"},
	{"call", "CallEnded", "outcome"},
}

func TestTheCorpusReplays(t *testing.T) {
	told := map[string]bool{}
	for _, story := range stories {
		var bodies []proto.Message
		for _, name := range strings.Fields(story.events) {
			mt, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("sandtrail.events.v1." + strings.Split(name, "+")[0]))
			require.NoError(t, err)
			bodies = append(bodies, readCorpus(t, name, mt))
			event, _, _ := strings.Cut(name, "+")
			told[event] = true
		}
		var state string
		var err error
		switch story.agg {
		case "sandbox":
			var s sandbox.Sandbox
			agg := subject.Sandbox("acme", sandboxID)
			s, err = sandbox.Fold(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
			state = s.State
			require.Equal(t, "acme", s.Tenant)
			require.Equal(t, time.Unix(1767323046+100, 102).UTC(), s.ExpiresAt)
		case "exec":
			var x sandbox.Exec
			agg := subject.Exec("acme", sandboxID, execID)
			x, err = sandbox.FoldExec(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
			state = x.State
			require.Equal(t, "usage_event_id", x.UsageEventID)
		case "webhook":
			agg := subject.Webhook("acme", "w")
			p := webhook.Fold(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
			state = p.State()
			require.Equal(t, "url", p.URL)
		case "tenant":
			agg := subject.Tenant("acme")
			x := tenant.Fold(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
			require.Equal(t, "name", x.Name)
			require.Equal(t, tenant.Quotas{"name": 102}, x.Quotas)
			state = "created"
		case "name":
			var n sandbox.Name
			agg := subject.Name("acme", sandbox.NameID("name"))
			n, err = sandbox.FoldName(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
			state = n.Sandbox
			require.Equal(t, "name", n.Name)
		case "egress": // nothing is decided on it
			state = bodies[0].(*eventsv1.EgressDecided).GetDecisions()[0].GetReason()
		case "call": // it stands in a stream of its own, in no history
			state = bodies[0].(*eventsv1.CallEnded).GetOutcome()
		case "letter":
			agg := subject.Letter("acme", execID)
			state, err = dlq.Decision(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
		case "log":
			agg := subject.Log(execID)
			events := sandbox.Events(sandbox.CommandMeta{ID: "c", Time: start, Tenant: agg.Tenant}, bodies...)
			_, err = eventlog.Messages(t.Context(), agg, eventlog.Tail{}, events)
			if body, ok := events[0].Body.(*eventsv1.LogSigned); ok && body.GetSize() > 0 && len(body.GetRange()) > 0 {
				state = "signed"
			}
		default:
			var w sandbox.Workspace
			agg := subject.Workspace("acme", sandboxID)
			w, err = sandbox.FoldWorkspace(eventlog.History{Aggregate: agg, Events: record(t, agg, eventlog.Tail{}, start, "c", bodies...)})
			state = w.State
		}
		require.NoError(t, err)
		require.Equal(t, story.state, state)
	}
	for _, mt := range eventTypes() {
		require.True(t, told[string(mt.Descriptor().Name())], "no story tells %s", mt.Descriptor().Name())
	}
}
