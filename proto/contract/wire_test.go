package contract

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// raw assembles a message from field numbers alone, as a client generated from the published contract would send it.
type raw []byte

func (r raw) str(n protowire.Number, v string) raw {
	return protowire.AppendString(protowire.AppendTag(r, n, protowire.BytesType), v)
}

func (r raw) num(n protowire.Number, v uint64) raw {
	return protowire.AppendVarint(protowire.AppendTag(r, n, protowire.VarintType), v)
}

func (r raw) msg(n protowire.Number, v raw) raw {
	return protowire.AppendBytes(protowire.AppendTag(r, n, protowire.BytesType), v)
}

func pair(k, v string) raw { return raw{}.str(1, k).str(2, v) }

var (
	usage = &commonv1.UsageMetrics{
		CpuMs: 1, MemoryPeakBytes: 2, MemoryAvgBytes: 3, DiskReadBytes: 4, DiskWriteBytes: 5,
		NetworkEgressBytes: 6, NetworkIngressBytes: 7, GpuMs: 8, GpuMemoryBytes: 9,
	}
	rawUsage = raw{}.num(1, 1).num(2, 2).num(3, 3).num(4, 4).num(5, 5).num(6, 6).num(7, 7).num(8, 8).num(9, 9)
	at       = timestamppb.New(time.Unix(1700000000, 5))
	rawAt    = raw{}.num(1, 1700000000).num(2, 5)
	took     = durationpb.New(3*time.Second + 7)
	rawTook  = raw{}.num(1, 3).num(2, 7)
	retry    = int32(30)
	limit    = int32(20)
	total    = int64(99)
)

func TestMessagesDecodeFromPublishedNumbers(t *testing.T) {
	for name, c := range map[string]struct {
		wire raw
		want proto.Message
	}{
		"CreateSandboxRequest": {
			raw{}.str(1, "t").str(2, "s").str(3, "img").msg(4, raw{}.str(1, "fast").str(2, "5Gi").str(3, "/w")).
				msg(5, raw{}.num(1, 500).num(2, 1<<30).msg(3, rawTook)).msg(6, pair("A", "b")).str(7, "org"),
			&computev1.CreateSandboxRequest{
				TenantId: "t", SessionId: "s", Image: "img",
				Workspace: &computev1.WorkspaceSpec{StorageClass: "fast", Size: "5Gi", MountPath: "/w"},
				Limits:    &computev1.ResourceLimits{CpuMillis: 500, MemoryBytes: 1 << 30, MaxRuntime: took},
				EnvVars:   map[string]string{"A": "b"}, OrgId: "org",
			},
		},
		"CreateSandboxResponse": {
			raw{}.str(1, "id").num(2, 1).msg(3, rawAt),
			&computev1.CreateSandboxResponse{SandboxId: "id", Status: computev1.SandboxStatus_SANDBOX_STATUS_STARTING, CreatedAt: at},
		},
		"DestroySandboxRequest":  {raw{}.str(1, "id"), &computev1.DestroySandboxRequest{SandboxId: "id"}},
		"DescribeSandboxRequest": {raw{}.str(1, "id"), &computev1.DescribeSandboxRequest{SandboxId: "id"}},
		"DestroySandboxResponse": {
			raw{}.str(1, "id").msg(2, rawTook).msg(10, rawUsage),
			&computev1.DestroySandboxResponse{SandboxId: "id", TotalUptime: took, TotalUsage: usage},
		},
		"DescribeSandboxResponse": {
			raw{}.str(1, "id").num(2, 2).msg(3, rawAt).msg(4, rawTook).msg(10, rawUsage),
			&computev1.DescribeSandboxResponse{
				SandboxId: "id", Status: computev1.SandboxStatus_SANDBOX_STATUS_READY, CreatedAt: at, CurrentUptime: took, CurrentUsage: usage,
			},
		},
		"ExecCommandRequest": {
			raw{}.str(1, "id").str(2, "python3").str(3, "-c").str(3, "1").msg(4, pair("K", "v")).str(5, "/workspace").msg(6, rawTook),
			&computev1.ExecCommandRequest{
				SandboxId: "id", Command: "python3", Args: []string{"-c", "1"}, Env: map[string]string{"K": "v"}, WorkingDir: "/workspace", Timeout: took,
			},
		},
		"ExecEvent stdout": {
			raw{}.msg(1, raw{}.str(1, "out")).msg(10, rawAt),
			&computev1.ExecEvent{Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: []byte("out")}}, EmittedAt: at},
		},
		"ExecEvent stderr": {
			raw{}.msg(2, raw{}.str(1, "err")),
			&computev1.ExecEvent{Event: &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: []byte("err")}}},
		},
		"ExecEvent completed": {
			raw{}.msg(3, raw{}.num(1, 3).msg(2, rawTook).num(3, 1).msg(10, rawUsage)),
			&computev1.ExecEvent{Event: &computev1.ExecEvent_Completed{
				Completed: &computev1.ExecCompleted{ExitCode: 3, WallTime: took, Cancelled: true, Usage: usage},
			}},
		},
		"ReadFileRequest": {
			raw{}.str(1, "id").str(2, "p").num(3, 4).num(4, 5),
			&computev1.ReadFileRequest{SandboxId: "id", Path: "p", Offset: 4, MaxBytes: 5},
		},
		"ReadFileResponse": {
			raw{}.str(1, "data").num(2, 9).num(3, 1),
			&computev1.ReadFileResponse{Data: []byte("data"), TotalSize: 9, Eof: true},
		},
		"WriteFileRequest": {
			raw{}.str(1, "id").str(2, "p").str(3, "data").num(4, 1).num(5, 0o600),
			&computev1.WriteFileRequest{SandboxId: "id", Path: "p", Data: []byte("data"), Append: true, Mode: 0o600},
		},
		"WriteFileResponse": {raw{}.num(1, 7), &computev1.WriteFileResponse{BytesWritten: 7}},
		"ListFilesRequest": {
			raw{}.str(1, "id").str(2, "p").num(3, 1).num(4, 8),
			&computev1.ListFilesRequest{SandboxId: "id", Path: "p", Recursive: true, MaxEntries: 8},
		},
		"ListFilesResponse": {
			raw{}.msg(1, raw{}.str(1, "a").num(2, 2).num(3, 1).num(4, 0o755).msg(5, rawAt)).num(2, 1),
			&computev1.ListFilesResponse{
				Entries: []*computev1.FileEntry{{Path: "a", Size: 2, IsDir: true, Mode: 0o755, ModifiedAt: at}}, Truncated: true,
			},
		},
		"ErrorDetail": {
			raw{}.str(1, "not_found").str(2, "m").msg(3, pair("f", "bad")).num(4, 30),
			&commonv1.ErrorDetail{Code: "not_found", Message: "m", Fields: map[string]string{"f": "bad"}, RetryAfterSeconds: &retry},
		},
		"PageRequest":  {raw{}.str(1, "c").num(2, 20), &commonv1.PageRequest{Cursor: "c", Limit: &limit}},
		"PageResponse": {raw{}.str(1, "n").num(2, 99), &commonv1.PageResponse{NextCursor: "n", Total: &total}},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.want.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(c.wire, got); err != nil {
				t.Fatal(err)
			}
			if unknown := got.ProtoReflect().GetUnknown(); len(unknown) > 0 {
				t.Fatalf("fields of the contract that we do not know: %x", unknown)
			}
			if !proto.Equal(got, c.want) {
				t.Fatalf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestServiceKeepsPublishedMethods(t *testing.T) {
	desc := computev1.ComputeService_ServiceDesc
	if desc.ServiceName != "compute.v1.ComputeService" {
		t.Fatalf("service is called %s", desc.ServiceName)
	}
	unary := map[string]bool{}
	for _, m := range desc.Methods {
		unary[m.MethodName] = true
	}
	for _, m := range []string{"CreateSandbox", "DestroySandbox", "DescribeSandbox", "ReadFile", "WriteFile", "ListFiles"} {
		if !unary[m] {
			t.Errorf("unary method %s is gone", m)
		}
	}
	found := false
	for _, s := range desc.Streams {
		if s.StreamName == "ExecCommand" {
			found = s.ServerStreams && !s.ClientStreams
		}
	}
	if !found {
		t.Error("ExecCommand is no longer a server stream")
	}
	var _ grpc.ServiceDesc = desc
}

// Upstream may add fields below 100 to the published messages; ours start there.
func TestOwnFieldsStartAt100(t *testing.T) {
	published := map[protoreflect.FullName]protoreflect.FieldNumber{
		"compute.v1.CreateSandboxRequest": 7, "compute.v1.WorkspaceSpec": 3, "compute.v1.ResourceLimits": 3,
		"compute.v1.CreateSandboxResponse": 3, "compute.v1.DestroySandboxResponse": 10, "compute.v1.DescribeSandboxResponse": 10,
		"compute.v1.ExecCommandRequest": 6, "compute.v1.ExecEvent": 10, "compute.v1.ExecCompleted": 10,
		"compute.v1.ReadFileRequest": 4, "compute.v1.WriteFileRequest": 5, "compute.v1.ListFilesRequest": 4,
		"compute.v1.FileEntry": 5, "common.v1.UsageMetrics": 9, "common.v1.ErrorDetail": 4,
	}
	for _, file := range []protoreflect.FileDescriptor{computev1.File_compute_v1_compute_proto, commonv1.File_common_v1_common_proto} {
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			last, ok := published[m.FullName()]
			if !ok {
				continue
			}
			for j := range m.Fields().Len() {
				if n := m.Fields().Get(j).Number(); n > last && n < 100 {
					t.Errorf("%s.%s has number %d", m.FullName(), m.Fields().Get(j).Name(), n)
				}
			}
		}
	}
}
