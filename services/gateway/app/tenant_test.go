package app_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

var twoTenants = map[string]string{"alice": "acme", "bob": "globex", "expired": "acme"}

// methods are all of the service, so that a new one is tested without being named here.
func methods() (all []protoreflect.MethodDescriptor) {
	list := computev1.File_compute_v1_compute_proto.Services().ByName("ComputeService").Methods()
	for i := range list.Len() {
		all = append(all, list.Get(i))
	}
	return all
}

// request is a valid one of a method with the given fields, where it has them.
func request(t testing.TB, m protoreflect.MethodDescriptor, fields map[string]string) proto.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	require.NoError(t, err)
	req := mt.New()
	for name, value := range fields {
		if f := m.Input().Fields().ByName(protoreflect.Name(name)); f != nil {
			req.Set(f, protoreflect.ValueOf(value))
		}
	}
	if f := m.Input().Fields().ByName("no_follow"); f != nil {
		req.Set(f, protoreflect.ValueOf(true))
	}
	if extend, ok := req.Interface().(*computev1.ExtendSandboxRequest); ok {
		extend.Timeout = durationpb.New(time.Second)
	}
	return req.Interface()
}

// call makes any call and returns all answers as text.
func call(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, req proto.Message) (string, error) {
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer()}, name)
	if err != nil {
		return "", err
	}
	if err := errors.Join(s.SendMsg(req), s.CloseSend()); err != nil {
		return "", err
	}
	text := ""
	for {
		mt, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
		if err != nil {
			return "", err
		}
		res := mt.New().Interface()
		if err := s.RecvMsg(res); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return text, err
		}
		text += protojson.Format(res)
		if !m.IsStreamingServer() {
			return text, nil
		}
	}
}

func answerUsage(w *world) {
	sub, err := w.NC.Subscribe(subject.Usage(), func(m *nats.Msg) {
		q := &commandsv1.UsageQuery{}
		_ = proto.Unmarshal(m.Data, q)
		reply := &commandsv1.UsageReply{Rows: []*computev1.UsageRow{{TenantId: q.GetTenantId()}}}
		if q.GetCursor() != "" { // it has given none
			reply = &commandsv1.UsageReply{Error: &commonv1.ErrorDetail{
				Code: "invalid_argument", Reason: "validation", Message: "no", Fields: map[string]string{"cursor": "must be the next_cursor of a page"},
			}}
		}
		data, _ := proto.Marshal(reply)
		_ = m.Respond(data)
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = sub.Unsubscribe() })
}

func TestNoCallReachesAnotherTenant(t *testing.T) {
	w := newWorld(t, twoTenants)
	answerUsage(w)
	box := w.create(w.as("alice"))
	exec := drainStream(w.exec(w.as("alice"), box, "true")).execID
	s, err := w.ExecCommand(w.as("alice"), &computev1.ExecCommandRequest{SandboxId: box, Command: "wait", Detach: true})
	require.NoError(t, err)
	h, err := s.Header()
	require.NoError(t, err)
	running := h.Get("sandtrail-exec-id")[0]
	fields := map[string]string{"image": "python", "command": "true", "path": "f"}
	// A filter finds nothing, where every other id is of something that is not there.
	filters := map[string]bool{"ListUsage": true}
	for _, m := range methods() {
		byID := m.Input().Fields().ByName("sandbox_id") != nil && !filters[string(m.Name())]
		for _, id := range []string{exec, running} {
			fields["sandbox_id"], fields["exec_id"], fields["tenant_id"] = box, id, ""
			text, err := call(w.as("bob"), w.conn, m, request(t, m, fields))
			if byID {
				require.Equal(t, "not_found", detail(t, err).GetCode(), m.Name())
			} else {
				require.NoError(t, err, m.Name())
			}
			require.NotContains(t, text, "acme", m.Name())
			require.NotContains(t, text, exec, m.Name())
		}
		if m.Input().Fields().ByName("exec_id") != nil { // by the exec's id alone
			fields["sandbox_id"] = ""
			text, err := call(w.as("bob"), w.conn, m, request(t, m, fields))
			if byID {
				require.Equal(t, "not_found", detail(t, err).GetCode(), m.Name())
			}
			require.NotContains(t, text, "acme", m.Name())
		}
		if m.Input().Fields().ByName("tenant_id") != nil {
			fields["tenant_id"], fields["sandbox_id"] = "acme", ""
			_, err := call(w.as("bob"), w.conn, m, request(t, m, fields))
			require.Equal(t, codes.PermissionDenied, status.Code(err), m.Name())
			require.Equal(t, "tenant_mismatch", detail(t, err).GetReason(), m.Name())
			// The metadata does not outrank the credential.
			fields["tenant_id"] = ""
			text, err := call(metadata.AppendToOutgoingContext(w.as("bob"), "x-tenant-id", "acme"), w.conn, m, request(t, m, fields))
			require.NoError(t, err, m.Name())
			require.NotContains(t, text, "acme", m.Name())
		}
	}
	x, err := w.GetExec(w.as("alice"), &computev1.GetExecRequest{ExecId: running})
	require.NoError(t, err)
	require.Equal(t, "running", x.GetState(), "nothing of bob's reached it")
}

func TestNoCallWithoutAValidKey(t *testing.T) {
	w := newWorld(t, twoTenants)
	box := w.create(w.as("alice"))
	fields := map[string]string{"image": "python", "command": "true", "path": "f", "sandbox_id": box, "exec_id": box}
	for what, header := range map[string]string{
		"missing": "", "wrong": "ApiKey nobody", "bearer": "Bearer " + secret("alice"), "bare": secret("alice"), "empty": "ApiKey ",
		"expired": "ApiKey " + secret("expired"), "hash": "ApiKey " + "0000",
	} {
		ctx := t.Context()
		if header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
		}
		for _, m := range methods() {
			_, err := call(ctx, w.conn, m, request(t, m, fields))
			require.Equal(t, codes.Unauthenticated, status.Code(err), "%s: %s", m.Name(), what)
			d := detail(t, err)
			require.Equal(t, "unauthorized", d.GetCode())
			require.Contains(t, d.GetMessage(), "ApiKey KEY", "says what to do")
		}
	}
	_, err := w.DescribeSandbox(metadata.AppendToOutgoingContext(t.Context(), "authorization", "apikey "+secret("alice")),
		&computev1.DescribeSandboxRequest{SandboxId: box})
	require.NoError(t, err, "the scheme's case does not matter")
	require.NotContains(t, w.logs.String(), secret("alice"))
	require.False(t, w.app.Development())
}

func TestHealthAndReflectionNeedNoKey(t *testing.T) {
	w := newWorld(t, twoTenants)
	w.until(func() bool {
		h, err := healthv1.NewHealthClient(w.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "compute.v1.ComputeService"})
		return err == nil && h.GetStatus() == healthv1.HealthCheckResponse_SERVING
	})
	r, err := reflectionv1.NewServerReflectionClient(w.conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	res, err := r.Recv()
	require.NoError(t, err)
	require.Contains(t, protojson.Format(res), "compute.v1.ComputeService")
	require.NoError(t, r.CloseSend())
	_, err = r.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func TestDevelopmentModeTakesTheTenantAsGiven(t *testing.T) {
	w := newWorld(t, nil)
	answerUsage(w)
	require.True(t, w.app.Development())
	w.until(func() bool { return len(w.logs.String()) > 0 })
	require.Contains(t, w.logs.String(), "development mode")

	_, err := w.CreateSandbox(t.Context(), &computev1.CreateSandboxRequest{Image: "python"})
	require.Contains(t, detail(t, err).GetFields(), "tenant_id")
	_, err = w.CreateSandbox(metadata.AppendToOutgoingContext(t.Context(), "x-tenant-id", "a.b>"), &computev1.CreateSandboxRequest{Image: "python"})
	require.Contains(t, detail(t, err).GetFields(), "tenant_id")
	_, err = w.CreateSandbox(metadata.AppendToOutgoingContext(t.Context(), "x-tenant-id", "globex", "x-org-id", string(make([]byte, 300))),
		&computev1.CreateSandboxRequest{Image: "python"})
	require.Error(t, err)
	made, err := w.CreateSandbox(metadata.AppendToOutgoingContext(t.Context(), "x-tenant-id", "globex", "x-org-id", "org"),
		&computev1.CreateSandboxRequest{Image: "python"})
	require.NoError(t, err)
	d, err := w.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: made.GetSandboxId()})
	require.NoError(t, err)
	require.Equal(t, "globex", d.GetDetail().GetTenantId())

	w.create(t.Context()) // of acme
	for tenant, n := range map[string]bool{"": true, "globex": false} {
		s, err := w.WatchEvents(t.Context(), &computev1.WatchEventsRequest{TenantId: tenant, NoFollow: true})
		require.NoError(t, err)
		seen := map[string]bool{}
		for {
			e, err := s.Recv()
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			seen[e.GetTenantId()] = true
		}
		require.True(t, seen["globex"])
		require.Equal(t, n, seen["acme"])
	}
}
