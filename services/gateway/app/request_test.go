package app_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/topology"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Every violated rule is a field of its own, all of them at once.
func TestValidation(t *testing.T) {
	w := newWorld(t, nil)
	box := ids.New()
	many := map[string]string{}
	for i := range 101 {
		many[fmt.Sprintf("K%d", i)] = "v"
	}
	create := func(r *computev1.CreateSandboxRequest) *computev1.CreateSandboxRequest {
		r.TenantId, r.Image = "acme", "python"
		return r
	}
	exec := func(r *computev1.ExecCommandRequest) *computev1.ExecCommandRequest {
		r.SandboxId, r.Command = box, "true"
		return r
	}
	limit := int32(201)
	size := func(s string) *computev1.CreateSandboxRequest {
		return create(&computev1.CreateSandboxRequest{Workspace: &computev1.WorkspaceSpec{Size: s}})
	}
	for i, c := range []struct {
		req    proto.Message
		fields []string
	}{
		{
			&computev1.CreateSandboxRequest{TenantId: "a.b", SessionId: strings.Repeat("s", 256), OrgId: strings.Repeat("o", 256)},
			[]string{"image", "org_id", "session_id", "tenant_id"},
		},
		{
			create(&computev1.CreateSandboxRequest{EnvVars: map[string]string{"lower": "v", "OK": "v", "BIG": strings.Repeat("x", 4097), "": "v"}}),
			[]string{`env_vars[""]`, `env_vars["BIG"]`, `env_vars["lower"]`},
		},
		{create(&computev1.CreateSandboxRequest{EnvVars: many}), []string{"env_vars"}},
		{create(&computev1.CreateSandboxRequest{Workspace: &computev1.WorkspaceSpec{MountPath: "relative"}}), []string{"workspace.mount_path"}},
		{create(&computev1.CreateSandboxRequest{Workspace: &computev1.WorkspaceSpec{MountPath: "/a/../b"}}), []string{"workspace.mount_path"}},
		{create(&computev1.CreateSandboxRequest{Workspace: &computev1.WorkspaceSpec{MountPath: "/"}}), []string{"workspace.mount_path"}},
		{size("5 Gi"), []string{"workspace.size"}},
		{size("-5Gi"), []string{"workspace.size"}},
		{size("5Gib"), []string{"workspace.size"}},
		{size("1"), []string{"workspace.size"}},
		{size("101Gi"), []string{"workspace.size"}},
		{size("9999999P"), []string{"workspace.size"}},
		{
			create(&computev1.CreateSandboxRequest{Limits: &computev1.ResourceLimits{CpuMillis: 64_001, MemoryBytes: 1, MaxRuntime: durationpb.New(29*24*time.Hour + 48*time.Hour - time.Hour*24)}, Workspace: &computev1.WorkspaceSpec{Size: "x"}}),
			[]string{"limits.cpu_millis", "limits.memory_bytes", "workspace.size"},
		},
		{
			create(&computev1.CreateSandboxRequest{Limits: &computev1.ResourceLimits{MaxRuntime: durationpb.New(31 * 24 * time.Hour), Pids: 40_000}}),
			[]string{"limits.max_runtime", "limits.pids"},
		},
		{create(&computev1.CreateSandboxRequest{Labels: map[string]string{"-x": "v", "ok": strings.Repeat("v", 129)}}), []string{`labels["-x"]`, `labels["ok"]`}},
		{&computev1.DescribeSandboxRequest{SandboxId: "no"}, []string{"sandbox_id"}},
		{&computev1.DestroySandboxRequest{SandboxId: "evt.*"}, []string{"sandbox_id"}},
		{&computev1.ExecCommandRequest{SandboxId: "x", Env: map[string]string{"a b": "v"}}, []string{"command", `env["a b"]`, "sandbox_id"}},
		{exec(&computev1.ExecCommandRequest{Timeout: durationpb.New(0)}), []string{"timeout"}},
		{exec(&computev1.ExecCommandRequest{Stdin: make([]byte, 524_289)}), []string{"stdin"}},
		{&computev1.ReadFileRequest{SandboxId: box, Offset: -1, MaxBytes: 16<<20 + 1}, []string{"max_bytes", "offset", "path"}},
		{&computev1.WriteFileRequest{SandboxId: box, Path: "f", Data: make([]byte, 16<<20+1), Mode: 0o1000}, []string{"data", "mode"}},
		{&computev1.ListFilesRequest{SandboxId: box, MaxEntries: 10_001}, []string{"max_entries"}},
		{&computev1.ListSandboxesRequest{Page: &commonv1.PageRequest{Limit: &limit}}, []string{"page.limit"}},
		{&computev1.ListSandboxesRequest{Page: &commonv1.PageRequest{Cursor: "%%"}}, []string{"page.cursor"}},
		{&computev1.AttachExecRequest{ExecId: "x", SandboxId: "y"}, []string{"exec_id", "sandbox_id"}},
		{&computev1.CancelExecRequest{}, []string{"exec_id"}},
		{&computev1.GetExecRequest{}, []string{"exec_id"}},
		{&computev1.WatchEventsRequest{TenantId: ">", SandboxId: "*"}, []string{"sandbox_id", "tenant_id"}},
		{&computev1.ListUsageRequest{TenantId: "*", ExecId: "x"}, []string{"exec_id", "tenant_id"}},
	} {
		for _, m := range methods() {
			if m.Input().FullName() != c.req.ProtoReflect().Descriptor().FullName() {
				continue
			}
			_, err := call(t.Context(), w.conn, m, c.req)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%d %v", i, err)
			d := detail(t, err)
			require.Equal(t, "validation", d.GetReason())
			require.Equal(t, c.fields, slices.Sorted(maps.Keys(d.GetFields())), "%d: %v", i, d)
			var shown []string
			for _, x := range status.Convert(err).Details() {
				if b, ok := x.(*errdetails.BadRequest); ok {
					for _, v := range b.GetFieldViolations() {
						shown = append(shown, v.GetField())
					}
				}
			}
			require.Equal(t, c.fields, shown)
		}
	}
}

func TestTimeoutOverTheMaximumIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	run := func(d time.Duration) *transcript {
		s, err := w.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "true", Timeout: durationpb.New(d)})
		require.NoError(t, err)
		return drainStream(s)
	}
	require.Contains(t, detail(t, run(24*time.Hour+time.Nanosecond).failure).GetFields()["timeout"], "24h0m0s")
	for d, ms := range map[time.Duration]uint64{24 * time.Hour: 86_400_000, time.Microsecond: 1} {
		r := run(d)
		require.NotNil(t, r.completed, "%v", r.failure)
		require.Equal(t, ms, w.peer.running[r.execID].cmd.GetStart().GetSpec().GetTimeoutMs(), "not clamped, not the default")
	}
	unset := drainStream(w.exec(t.Context(), box, "true"))
	require.EqualValues(t, time.Hour.Milliseconds(), w.peer.running[unset.execID].cmd.GetStart().GetSpec().GetTimeoutMs(), "the documented default, where 0 is refused")
	s, err := w.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "true", Args: []string{strings.Repeat("x", 131_072)}})
	require.NoError(t, err)
	require.Contains(t, detail(t, drainStream(s).failure).GetFields(), "args")
}

// Looking at a sandbox or following what runs in it changes neither how long the one lives nor how long the other may run.
func TestAttachChangesNoLifetime(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	s, err := w.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "wait", Detach: true, Timeout: durationpb.New(time.Hour)})
	require.NoError(t, err)
	h, err := s.Header()
	require.NoError(t, err)
	exec := h.Get("sandtrail-exec-id")[0]
	look := func() string {
		d, err := w.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: box})
		require.NoError(t, err)
		require.NotNil(t, d.GetDetail().GetExpiresAt())
		x, err := w.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: exec})
		require.NoError(t, err)
		return fmt.Sprint(d.GetDetail().GetExpiresAt(), d.GetDetail().GetSequence(), d.GetDetail().GetLimits().GetMaxRuntime(), x.GetState(), x.GetLastSequence())
	}
	before, commands := look(), w.peer.count("cmd.")
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		s, err := w.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: exec})
		require.NoError(t, err)
		_, err = s.Recv() // a heartbeat: it follows
		require.NoError(t, err)
		leave()
		require.Error(t, drainStream(s).failure)
	}
	require.Never(t, func() bool { return w.peer.count("cmd.") != commands }, 4*50*time.Millisecond, tick, "four times the grace of who goes away")
	require.Equal(t, before, look())
}

func TestErrorsShowTheirCorrelationAndNothingInternal(t *testing.T) {
	w := newWorld(t, nil)
	for sent, same := range map[string]bool{"my-id-1": true, "": false, strings.Repeat("x", 200): false, "two words": false} {
		var header metadata.MD
		_, err := w.DescribeSandbox(metadata.AppendToOutgoingContext(t.Context(), "x-correlation-id", sent),
			&computev1.DescribeSandboxRequest{SandboxId: ids.New()}, grpc.Header(&header))
		d := detail(t, err)
		require.Equal(t, []string{d.GetCorrelationId()}, header.Get("x-correlation-id"))
		require.Equal(t, d.GetCorrelationId() == sent, same)
		require.Contains(t, w.logs.String(), d.GetCorrelationId())
	}
	// An event that cannot be read is our trouble: its text is in the log and not in the answer.
	box := ids.New()
	_, err := w.JS.Publish(t.Context(), "evt.acme.sandbox."+box, []byte("broken-inside"))
	require.NoError(t, err)
	_, err = w.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: box})
	require.Equal(t, "internal", detail(t, err).GetCode())
	require.NotContains(t, fmt.Sprint(status.Convert(err).Proto()), "evt.acme")
	require.Contains(t, w.logs.String(), "evt.acme.sandbox."+box)
}

const canary = "CANARY-7f3a9"

func TestSecretsStandNowhereInClear(t *testing.T) {
	w := newWorld(t, map[string]string{"alice": "acme"})
	ctx := keyed(w.as("alice"), "key-1")
	made, err := w.CreateSandbox(ctx, &computev1.CreateSandboxRequest{Image: "python", EnvVars: map[string]string{"TOKEN": canary}})
	require.NoError(t, err)
	box := made.GetSandboxId()
	w.until(func() bool {
		d, err := w.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: box})
		return err == nil && d.GetDetail().GetState() == "ready"
	})
	s, err := w.ExecCommand(ctx, &computev1.ExecCommandRequest{
		SandboxId: box, Command: "true", Env: map[string]string{"PASSWORD": canary}, Stdin: []byte(canary),
	})
	require.NoError(t, err)
	require.NotNil(t, drainStream(s).completed)
	_, err = w.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: box, Path: "f", Data: []byte(canary)})
	require.NoError(t, err)
	_, err = w.ReadFile(ctx, &computev1.ReadFileRequest{SandboxId: box, Path: "f"})
	require.NoError(t, err)
	// Failures: a value that is too long, a key that is used again.
	_, err = w.CreateSandbox(ctx, &computev1.CreateSandboxRequest{Image: "python", EnvVars: map[string]string{"TOKEN": strings.Repeat(canary, 1000)}})
	require.NotContains(t, fmt.Sprint(status.Convert(err).Proto()), canary)
	_, err = w.CreateSandbox(ctx, &computev1.CreateSandboxRequest{Image: "python", EnvVars: map[string]string{"TOKEN": canary + "2"}})
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.NotContains(t, fmt.Sprint(status.Convert(err).Proto()), canary)

	commands := everything(t, w.JS, topology.StreamCommands)
	require.Contains(t, commands, "TOKEN", "the names are there")
	for what, text := range map[string]string{
		"log": w.logs.String(), "commands": commands, "events": everything(t, w.JS, topology.StreamEvents),
		"idempotency": everything(t, w.JS, "KV_"+topology.BucketIdem),
	} {
		require.NotEmpty(t, text, what)
		require.NotContains(t, text, canary, what)
		require.NotContains(t, text, secret("alice"), what)
	}
}

func TestNATSDown(t *testing.T) {
	w := newWorld(t, nil)
	answerUsage(w)
	box := w.create(t.Context())
	exec := drainStream(w.exec(t.Context(), box, "true")).execID
	health := func() healthv1.HealthCheckResponse_ServingStatus {
		h, err := healthv1.NewHealthClient(w.conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
		require.NoError(t, err)
		return h.GetStatus()
	}
	w.Stop()
	fields := map[string]string{"image": "python", "command": "true", "path": "f", "sandbox_id": box, "exec_id": exec, "tenant_id": "acme"}
	for _, m := range methods() {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		_, err := call(ctx, w.conn, m, request(t, m, fields))
		require.NoError(t, ctx.Err(), m.Name())
		cancel()
		require.Equal(t, codes.Unavailable, status.Code(err), m.Name())
		d := detail(t, err)
		require.Equal(t, "log_unavailable", d.GetReason())
		require.Positive(t, d.GetRetryAfterSeconds())
	}
	w.until(func() bool { return health() == healthv1.HealthCheckResponse_NOT_SERVING })
	w.Resume()
	w.until(func() bool { return health() == healthv1.HealthCheckResponse_SERVING })
	for _, m := range methods() {
		if m.Name() != "DestroySandbox" {
			_, err := call(t.Context(), w.conn, m, request(t, m, fields))
			require.NoError(t, err, m.Name())
		}
	}
}

func TestFiles(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	data := []byte(strings.Repeat("0123456789abcdef", 1<<20))
	wrote, err := w.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: box, Path: "big", Data: data})
	require.NoError(t, err)
	require.EqualValues(t, len(data), wrote.GetBytesWritten())
	require.EqualValues(t, len(data), wrote.GetSize())
	sum := sha256.Sum256(data)
	require.Equal(t, sum[:], wrote.GetSha256())
	read, err := w.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: box, Path: "big"})
	require.NoError(t, err)
	require.True(t, read.GetEof() && len(read.GetData()) == len(data) && string(read.GetData()) == string(data))
	part, err := w.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: box, Path: "big", Offset: 3, MaxBytes: 600_000})
	require.NoError(t, err)
	require.Equal(t, string(data[3:600_003]), string(part.GetData()))
	require.EqualValues(t, len(data), part.GetTotalSize())
	require.False(t, part.GetEof())
	_, err = w.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: box, Path: "none"})
	require.NoError(t, err, "an empty file")
	require.Contains(t, w.peer.files, "none")
}

func TestCallsOnWhatIsOver(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.peer.script("out", func(x *execution) {
		x.write(chunks.Stdout, []byte("kept"))
		x.complete(0)
	})
	id := drainStream(w.exec(t.Context(), box, "out")).execID
	for range 2 {
		d, err := w.DestroySandbox(t.Context(), &computev1.DestroySandboxRequest{SandboxId: box})
		require.NoError(t, err)
		require.NotNil(t, d.GetWorkspaceDeleteAfter())
	}
	require.Equal(t, "sandbox_destroyed", detail(t, drainStream(w.exec(t.Context(), box, "true")).failure).GetReason())
	_, err := w.ListFiles(t.Context(), &computev1.ListFilesRequest{SandboxId: box})
	require.Equal(t, "sandbox_destroyed", detail(t, err).GetReason())
	s, err := w.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id})
	require.NoError(t, err)
	require.Equal(t, "kept", drainStream(s).out.String(), "output outlives the sandbox")
}
