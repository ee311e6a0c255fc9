package app_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// outcome is how a call must end: the reason of its refusal, or "" where it succeeds.
type outcome struct {
	code   fault.Code
	reason fault.Reason
}

var (
	fine      = outcome{}
	invalid   = outcome{fault.InvalidArgument, fault.ReasonValidation}
	noSandbox = outcome{fault.NotFound, fault.ReasonSandboxNotFound}
	noExec    = outcome{fault.NotFound, fault.ReasonExecNotFound}
	destroyed = outcome{fault.FailedPrecondition, fault.ReasonSandboxDestroyed}
)

// rules are what the table below cannot read from a method's request.
type rules struct {
	// needed fields must not be empty.
	needed []string
	// unknown is the outcome for a well-formed id that nobody, or another tenant, has; by field.
	unknown map[string]outcome
	// terminal is the outcome for a sandbox that was destroyed and an exec that has ended.
	terminal outcome
	// any fields take every number of their type.
	any []string
}

// inputs has every method of the service: a new one fails the tests until it is here.
var inputs = map[string]rules{
	"CreateSandbox":   {needed: []string{"image"}},
	"DestroySandbox":  {needed: []string{"sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}},
	"StopSandbox":     {needed: []string{"sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed},
	"StartSandbox":    {needed: []string{"sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed},
	"ExtendSandbox":   {needed: []string{"sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed},
	"DescribeSandbox": {needed: []string{"sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}},
	"ExecCommand":     {needed: []string{"command", "sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed},
	"ReadFile": {
		needed: []string{"path", "sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed,
		any: []string{"offset"}, // none under 0; one behind the end of the file reads nothing
	},
	"WriteFile":     {needed: []string{"path", "sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed},
	"ListFiles":     {needed: []string{"sandbox_id"}, unknown: map[string]outcome{"sandbox_id": noSandbox}, terminal: destroyed},
	"ListSandboxes": {},
	"AttachExec": {
		needed: []string{"exec_id"}, unknown: map[string]outcome{"sandbox_id": noExec, "exec_id": noExec},
		any: []string{"after_chunk"},
	},
	"CancelExec":  {needed: []string{"exec_id"}, unknown: map[string]outcome{"sandbox_id": noExec, "exec_id": noExec}},
	"GetExec":     {needed: []string{"exec_id"}, unknown: map[string]outcome{"sandbox_id": noExec, "exec_id": noExec}},
	"WatchEvents": {unknown: map[string]outcome{"sandbox_id": noSandbox}, any: []string{"after_sequence"}},
	"GetQuota":    {},
	"ListUsage":   {unknown: map[string]outcome{"sandbox_id": fine, "exec_id": fine}}, // a filter finds nothing
}

// table is a world with two tenants: what alice has, what of hers is over, and what is bob's.
type table struct {
	*world
	liveBox, liveExec, overBox, overExec, theirBox, theirExec string
}

func newTable(t *testing.T) *table {
	t.Helper()
	w := &table{world: newWorld(t, twoTenants)}
	answerUsage(w.world)
	own := func(name string) (box, exec string) {
		made, err := w.CreateSandbox(w.as(name), &computev1.CreateSandboxRequest{Image: "python"})
		require.NoError(t, err)
		w.until(func() bool {
			d, err := w.DescribeSandbox(w.as(name), &computev1.DescribeSandboxRequest{SandboxId: made.GetSandboxId()})
			return err == nil && d.GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_READY
		})
		return made.GetSandboxId(), drainStream(w.exec(w.as(name), made.GetSandboxId(), "true")).execID
	}
	w.liveBox, w.liveExec = own("alice")
	w.theirBox, w.theirExec = own("bob")
	w.overBox, w.overExec = own("alice")
	_, err := w.DestroySandbox(w.as("alice"), &computev1.DestroySandboxRequest{SandboxId: w.overBox})
	require.NoError(t, err)
	return w
}

// valid is a request of a method that succeeds, about a sandbox and an exec.
func (w *table) valid(t testing.TB, m protoreflect.MethodDescriptor, box, exec string) proto.Message {
	t.Helper()
	return request(t, m, map[string]string{"image": "python", "command": "true", "path": "f", "sandbox_id": box, "exec_id": exec})
}

// state is all that a call could have changed.
func (w *table) state(t testing.TB) string {
	t.Helper()
	text := ""
	for _, name := range []string{topology.StreamEvents, topology.StreamCommands, topology.StreamOutput, "KV_" + topology.BucketIdem} {
		s, err := w.JS.Stream(t.Context(), name)
		require.NoError(t, err)
		info, err := s.Info(t.Context())
		require.NoError(t, err)
		text += fmt.Sprintln(name, info.State.LastSeq)
	}
	w.peer.mu.Lock()
	defer w.peer.mu.Unlock()
	return text + fmt.Sprintln(len(w.peer.seen), w.peer.appends, len(w.peer.uploads), slices.Sorted(maps.Keys(w.peer.files)))
}

// row is one request and what must become of it.
type row struct {
	what string
	req  proto.Message
	want outcome
	// field is the one that is at fault, for an invalid request.
	field string
	// behind: it asks for what stands behind the end of something.
	behind bool
}

// check makes the call and compares all that the caller learns, and that nothing was changed by it.
func (w *table) check(t *testing.T, m protoreflect.MethodDescriptor, r row) {
	t.Helper()
	before := w.state(t)
	text, err := call(w.as("alice"), w.conn, m, r.req)
	what := fmt.Sprintf("%s: %s", m.Name(), r.what)
	if r.want == fine {
		require.NoError(t, err, what)
		if r.behind {
			require.NotRegexp(t, `"(stdout|sequence|data)"`, text, "%s: nothing stands there", what)
		}
	} else {
		require.Error(t, err, what)
		d := detail(t, err)
		require.Equal(t, string(r.want.code), d.GetCode(), "%s: %v", what, d)
		require.Equal(t, string(r.want.reason), d.GetReason(), "%s: %v", what, d)
		require.Equal(t, fault.Status(fault.New(r.want.code, r.want.reason, ""), "").Code(), status.Code(err), what)
		require.NotEmpty(t, d.GetMessage(), what)
		if r.field != "" {
			require.Equal(t, []string{r.field}, slices.Sorted(maps.Keys(d.GetFields())), "%s: %v", what, d)
		} else {
			require.Empty(t, d.GetFields(), what)
		}
	}
	require.Equal(t, before, w.state(t), "%s changed something", what)
}

// way is a field of a request or of a message in it.
type way []protoreflect.FieldDescriptor

func (y way) String() string {
	var names []string
	for _, f := range y {
		names = append(names, string(f.Name()))
	}
	return strings.Join(names, ".")
}

func (y way) last() protoreflect.FieldDescriptor { return y[len(y)-1] }

// with is a copy of a request in which the field was changed.
func (y way) with(req proto.Message, change func(protoreflect.Message, protoreflect.FieldDescriptor)) proto.Message {
	req = proto.Clone(req)
	m := req.ProtoReflect()
	for _, f := range y[:len(y)-1] {
		m = m.Mutable(f).Message()
	}
	change(m, y.last())
	return req
}

func (y way) set(req proto.Message, value any) proto.Message {
	return y.with(req, func(m protoreflect.Message, f protoreflect.FieldDescriptor) { m.Set(f, protoreflect.ValueOf(value)) })
}

func (y way) put(req proto.Message, key, value string) proto.Message {
	return y.with(req, func(m protoreflect.Message, f protoreflect.FieldDescriptor) {
		m.Mutable(f).Map().Set(protoreflect.ValueOf(key).MapKey(), protoreflect.ValueOf(value))
	})
}

func (y way) add(req proto.Message, values ...any) proto.Message {
	return y.with(req, func(m protoreflect.Message, f protoreflect.FieldDescriptor) {
		for _, v := range values {
			m.Mutable(f).List().Append(protoreflect.ValueOf(v))
		}
	})
}

// ways are all fields of a request that hold a value themselves.
func ways(of protoreflect.MessageDescriptor, above way) (all []way) {
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		y := append(slices.Clone(above), f)
		if f.Kind() == protoreflect.MessageKind && !f.IsMap() && f.Message().ParentFile().Package() != "google.protobuf" {
			all = append(all, ways(f.Message(), y)...)
			continue
		}
		all = append(all, y)
	}
	return all
}

func TestEveryCallRefusesBadInput(t *testing.T) {
	w := newTable(t)
	var names []string
	for _, m := range methods() {
		names = append(names, string(m.Name()))
	}
	require.ElementsMatch(t, names, slices.Collect(maps.Keys(inputs)), "each method has its rules")
	total := 0
	for _, m := range methods() {
		t.Run(string(m.Name()), func(t *testing.T) {
			r := inputs[string(m.Name())]
			base := w.valid(t, m, w.liveBox, w.liveExec)
			var rows []row
			for _, y := range ways(m.Input(), nil) {
				rows = append(rows, w.rowsOf(t, r, y, base)...)
			}
			if r.unknown != nil {
				rows = append(rows, row{what: "what is over", req: w.valid(t, m, w.overBox, w.overExec), want: r.terminal})
			}
			for _, one := range rows {
				w.check(t, m, one)
			}
			total += len(rows)
		})
	}
	t.Logf("%d requests", total)
	require.Greater(t, total, 250)
}

// rowsOf are the ways in which one field can be wrong, by what it is.
func (w *table) rowsOf(t *testing.T, r rules, y way, base proto.Message) (rows []row) {
	t.Helper()
	refuse := func(what string, req proto.Message) {
		rows = append(rows, row{what: y.String() + ": " + what, req: req, want: invalid, field: y.String()})
	}
	f := y.last()
	switch {
	case f.IsMap():
		return w.rowsOfMap(y, base)
	case f.IsList() && f.Kind() == protoreflect.EnumKind:
		return append(rows, row{
			what: "a number that the enum does not have", req: y.add(base, protoreflect.EnumNumber(99)), want: invalid, field: y.String() + "[0]",
		})
	case f.IsList():
		require.Equal(t, protoreflect.StringKind, f.Kind(), "a list of another kind needs rows")
		many, item := make([]any, 10_000), strings.Repeat("x", 1<<10)
		for i := range many {
			many[i] = "x"
		}
		refuse("10,000 items", y.add(base, many...))
		refuse("1 MiB in 1,024 items", y.add(base, slices.Repeat([]any{item}, 1024)...))
		rows = append(rows,
			row{what: "an item of 1 MiB", req: y.add(base, "x", strings.Repeat("x", 1<<20)), want: invalid, field: y.String() + "[1]"},
			row{what: "an item with a zero byte", req: y.add(base, "x", "a\x00b"), want: invalid, field: y.String() + "[1]"})
		return rows
	case f.Kind() == protoreflect.MessageKind:
		require.EqualValues(t, "google.protobuf.Duration", f.Message().FullName(), "a message of another kind needs rows")
		for what, d := range map[string]*durationpb.Duration{
			"0": {}, "negative": durationpb.New(-time.Second), "the least negative": {Nanos: -1}, "a year": durationpb.New(365 * 24 * time.Hour),
			"longer than there is time": {Seconds: math.MaxInt64}, "longer ago than there was time": {Seconds: math.MinInt64},
		} {
			refuse(what, y.set(base, d.ProtoReflect()))
		}
		return rows
	}
	return append(rows, w.rowsOfScalar(t, r, y, base)...)
}

func (w *table) rowsOfScalar(t *testing.T, r rules, y way, base proto.Message) (rows []row) {
	t.Helper()
	refuse := func(what string, value any) {
		rows = append(rows, row{what: y.String() + ": " + what, req: y.set(base, value), want: invalid, field: y.String()})
	}
	f := y.last()
	unbounded := slices.Contains(r.any, y.String())
	switch f.Kind() {
	case protoreflect.StringKind:
		return append(rows, w.rowsOfText(t, r, y, base)...)
	case protoreflect.BytesKind:
		refuse("16 MiB and a byte", make([]byte, 16<<20+1))
	case protoreflect.Int64Kind:
		refuse("the least", int64(math.MinInt64))
		refuse("-1", int64(-1))
		if !unbounded {
			refuse("the most", int64(math.MaxInt64))
		}
	case protoreflect.Int32Kind:
		refuse("the least", int32(math.MinInt32))
		refuse("0", int32(0))
		refuse("the most", int32(math.MaxInt32))
	case protoreflect.Uint64Kind:
		if !unbounded {
			refuse("the most", uint64(math.MaxUint64))
		}
	case protoreflect.Uint32Kind:
		refuse("the most", uint32(math.MaxUint32))
	case protoreflect.BoolKind:
	default:
		require.Fail(t, "a field of another kind needs rows", "%s is %s", y, f.Kind())
	}
	if unbounded {
		rows = append(rows, row{what: "the most", behind: true, req: y.set(base, map[protoreflect.Kind]any{
			protoreflect.Int64Kind: int64(math.MaxInt64), protoreflect.Uint64Kind: uint64(math.MaxUint64),
		}[f.Kind()])})
	}
	return rows
}

func (w *table) rowsOfText(t *testing.T, r rules, y way, base proto.Message) (rows []row) {
	t.Helper()
	refuse := func(what, value string) {
		rows = append(rows, row{what: y.String() + ": " + what, req: y.set(base, value), want: invalid, field: y.String()})
	}
	name := y.String()
	if slices.Contains(r.needed, name) {
		refuse("empty", "")
	}
	refuse("1 MiB", strings.Repeat("x", 1<<20))
	refuse("a zero byte", "a\x00b")
	switch name {
	case "sandbox_id", "exec_id":
		id := ids.New()
		for _, malformed := range []string{
			"no", "evt.*", ">", "../" + id, id + "\n", " " + id, id[:35], id + "0", "{" + id + "}", strings.ReplaceAll(id, "-", ""), "urn:uuid:" + id, "\u00e9" + id[1:],
		} {
			refuse("malformed", malformed)
		}
		want, ok := r.unknown[name]
		require.True(t, ok, "say what an unknown %s gives", name)
		foreign := map[string]string{"sandbox_id": w.theirBox, "exec_id": w.theirExec}[name]
		rows = append(rows, row{what: name + ": unknown", req: y.set(base, id), want: want},
			row{what: name + ": another tenant's", req: y.set(base, foreign), want: want})
	case "tenant_id":
		for _, malformed := range []string{"a.b", "*", ">", "a b", "\u00e9", strings.Repeat("a", 65), "acme\n"} {
			refuse("malformed", malformed)
		}
		rows = append(rows, row{
			what: name + ": another tenant", req: y.set(base, "globex"), want: outcome{fault.PermissionDenied, fault.ReasonTenantMismatch}, field: name,
		})
	case "workspace.size":
		for _, no := range []string{
			"5 bananas", "-1", "9e99", "1e3", "0", "1", "Gi", "5Gib", "5 Gi", " 5Gi", "5Gi\n", "0x10", "NaN", "Inf", "1,5Gi", "5gi", "+5Gi", ".5Gi", "5.Gi", "\u0665Gi",
			"101Gi", "9999999P", "999999999999999999P", strings.Repeat("9", 32),
		} {
			refuse(no, no)
		}
	case "workspace.mount_path":
		for _, no := range []string{"relative", "/", "/a/../b", "..", "/" + strings.Repeat("x", 255)} {
			refuse(no, no)
		}
	case "page.cursor":
		for _, no := range []string{"%%", "bm8", "MSB4eA\n"} {
			refuse(no, no)
		}
	}
	return rows
}

func (w *table) rowsOfMap(y way, base proto.Message) (rows []row) {
	at := func(key string) string { return fmt.Sprintf("%s[%q]", y, key) }
	many := y.with(base, func(m protoreflect.Message, f protoreflect.FieldDescriptor) {
		for i := range 10_000 {
			m.Mutable(f).Map().Set(protoreflect.ValueOf(fmt.Sprintf("K%d", i)).MapKey(), protoreflect.ValueOf("v"))
		}
	})
	rows = append(rows, row{what: y.String() + ": 10,000 entries", req: many, want: invalid, field: y.String()},
		row{what: y.String() + ": a long value", req: y.put(base, "K", strings.Repeat("v", 1<<20)), want: invalid, field: at("K")},
		row{what: y.String() + ": a zero byte in a value", req: y.put(base, "K", "a\x00b"), want: invalid, field: at("K")})
	for _, key := range []string{"", "A=B", "=", "a b", "A\n", "-A", strings.Repeat("K", 300), "\u00c9"} {
		rows = append(rows, row{what: y.String() + ": the key " + key, req: y.put(base, key, "v"), want: invalid, field: at(key)})
	}
	return rows
}

// Each part of a request may be as large as its rule says, and all of them at once.
func TestTheLargestRequestIsCarried(t *testing.T) {
	w := newTable(t)
	env := map[string]string{}
	for i := range 100 {
		env[fmt.Sprintf("K%d", i)] = strings.Repeat("v", 4096)
	}
	s, err := w.ExecCommand(w.as("alice"), &computev1.ExecCommandRequest{
		SandboxId: w.liveBox, Command: "true", Args: []string{strings.Repeat("x", 128<<10-2<<10)}, Env: env, Stdin: make([]byte, 512<<10),
	})
	require.NoError(t, err)
	r := drainStream(s)
	require.NotNil(t, r.completed, "%v", r.failure)
	_, err = w.CreateSandbox(w.as("alice"), &computev1.CreateSandboxRequest{Image: "python", EnvVars: env, SessionId: strings.Repeat("s", 255)})
	require.NoError(t, err)
}
