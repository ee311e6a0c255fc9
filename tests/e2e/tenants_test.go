package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// tenant is one caller and what it owns.
type tenant struct {
	name, key, sandbox, exec string
}

func (n tenant) ctx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if n.key == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "ApiKey "+n.key)
}

// all reads a stream to its end.
func all[M any](stream grpc.ServerStreamingClient[M], err error) ([]*M, error) {
	if err != nil {
		return nil, err
	}
	var got []*M
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = append(got, m)
	}
}

// call makes one call of the service about what owner has, and returns the names of sandboxes and execs in what came back.
type call func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) (seen []string, err error)

// calls has every method of the service.
var calls = map[string]call{
	"CreateSandbox": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		res, err := api.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: owner.name, Image: stack.Image})
		if err == nil {
			_, err = api.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: res.GetSandboxId()})
		}
		return nil, err
	},
	"DestroySandbox": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: owner.sandbox})
		return nil, err
	},
	"ExtendSandbox": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.ExtendSandbox(ctx, &computev1.ExtendSandboxRequest{SandboxId: owner.sandbox, Timeout: durationpb.New(time.Second)})
		return nil, err
	},
	"StopSandbox": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.StopSandbox(ctx, &computev1.StopSandboxRequest{SandboxId: owner.sandbox})
		if err == nil {
			_, err = api.StartSandbox(ctx, &computev1.StartSandboxRequest{SandboxId: owner.sandbox}) // the calls behind it need it
		}
		return nil, err
	},
	"StartSandbox": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.StartSandbox(ctx, &computev1.StartSandboxRequest{SandboxId: owner.sandbox})
		return nil, err
	},
	"DescribeSandbox": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		res, err := api.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: owner.sandbox})
		return []string{res.GetSandboxId()}, err
	},
	"ExecCommand": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := all(api.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: owner.sandbox, Command: "true"}))
		return nil, err
	},
	"ReadFile": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.ReadFile(ctx, &computev1.ReadFileRequest{SandboxId: owner.sandbox, Path: "file"})
		return nil, err
	},
	"WriteFile": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: owner.sandbox, Path: "file", Data: []byte("x")})
		return nil, err
	},
	"ListFiles": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.ListFiles(ctx, &computev1.ListFilesRequest{SandboxId: owner.sandbox})
		return nil, err
	},
	"ListSandboxes": func(ctx context.Context, api computev1.ComputeServiceClient, _ tenant) ([]string, error) {
		res, err := api.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
		var seen []string
		for _, b := range res.GetSandboxes() {
			seen = append(seen, b.GetSandboxId())
		}
		return seen, err
	},
	"AttachExec": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := all(api.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: owner.exec}))
		return nil, err
	},
	"CancelExec": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.CancelExec(ctx, &computev1.CancelExecRequest{ExecId: owner.exec})
		return nil, err
	},
	"GetExec": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		res, err := api.GetExec(ctx, &computev1.GetExecRequest{ExecId: owner.exec})
		return []string{res.GetExecId(), res.GetSandboxId()}, err
	},
	"WatchEvents": func(ctx context.Context, api computev1.ComputeServiceClient, _ tenant) ([]string, error) {
		events, err := all(api.WatchEvents(ctx, &computev1.WatchEventsRequest{NoFollow: true}))
		var seen []string
		for _, e := range events {
			seen = append(seen, e.GetSandboxId(), e.GetExecId(), e.GetTenantId())
		}
		return seen, err
	},
	"ListUsage": func(ctx context.Context, api computev1.ComputeServiceClient, _ tenant) ([]string, error) {
		res, err := api.ListUsage(ctx, &computev1.ListUsageRequest{})
		var seen []string
		for _, r := range res.GetRows() {
			seen = append(seen, r.GetSandboxId(), r.GetExecId(), r.GetTenantId())
		}
		return seen, err
	},
	"GetQuota": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.GetQuota(ctx, &computev1.GetQuotaRequest{TenantId: owner.name})
		return nil, err
	},
}

// lists answer with what the caller has, so that there is nothing of another to ask for unless the request names the other.
var lists = map[string]call{
	"ListSandboxes": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.ListSandboxes(ctx, &computev1.ListSandboxesRequest{TenantId: owner.name})
		return nil, err
	},
	"WatchEvents": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := all(api.WatchEvents(ctx, &computev1.WatchEventsRequest{SandboxId: owner.sandbox, NoFollow: true}))
		return nil, err
	},
	"ListUsage": func(ctx context.Context, api computev1.ComputeServiceClient, owner tenant) ([]string, error) {
		_, err := api.ListUsage(ctx, &computev1.ListUsageRequest{TenantId: owner.name})
		return nil, err
	},
}

func keysFile(t *testing.T, tenants ...tenant) string {
	t.Helper()
	type entry struct {
		Name   string `json:"name"`
		Tenant string `json:"tenant"`
		SHA256 string `json:"sha256"`
	}
	var entries []entry
	for _, n := range tenants {
		sum := sha256.Sum256([]byte(n.key))
		entries = append(entries, entry{Name: "key-" + n.name, Tenant: n.name, SHA256: hex.EncodeToString(sum[:])})
	}
	data, err := json.Marshal(map[string]any{"keys": entries})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keys.json")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func TestTenantSeesOnlyItsOwnOnEveryCall(t *testing.T) {
	needsHost(t)
	a, b := tenant{name: "tenant-a", key: "key of a"}, tenant{name: "tenant-b", key: "key of b"}
	s := stack.Up(t, "--keys-file", keysFile(t, a, b))
	for _, n := range []*tenant{&a, &b} {
		ctx := n.ctx(t)
		box, err := s.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{Image: stack.Image, SessionId: "session"})
		require.NoError(t, err)
		n.sandbox = box.GetSandboxId()
		stream, err := s.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: n.sandbox, Command: "sh", Args: []string{"-c", "echo " + n.name + " > file"}})
		require.NoError(t, err)
		var r stack.Result
		require.NoError(t, r.Read(stream))
		require.Zero(t, r.Completed.GetExitCode())
		n.exec = r.ID
		require.Eventually(t, func() bool {
			res, err := s.API.ListUsage(n.ctx(t), &computev1.ListUsageRequest{})
			return err == nil && len(res.GetRows()) > 0
		}, 20*time.Second, 100*time.Millisecond)
	}
	methods := computev1.File_compute_v1_compute_proto.Services().ByName("ComputeService").Methods()
	require.Len(t, calls, methods.Len())
	nobody, forged := tenant{}, tenant{key: "key of c"}
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		t.Run(name, func(t *testing.T) {
			do := calls[name]
			require.NotNil(t, do, "this method is not tested")
			for _, stranger := range []tenant{nobody, forged} {
				_, err := do(stranger.ctx(t), s.API, a)
				require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
			}
			refused := do
			if about, ok := lists[name]; ok {
				refused = about
				seen, err := do(b.ctx(t), s.API, a)
				require.NoError(t, err)
				require.Contains(t, seen, b.sandbox)
				for _, of := range []string{a.sandbox, a.exec, a.name} {
					require.NotContains(t, seen, of)
				}
			}
			_, err := refused(b.ctx(t), s.API, a)
			require.Contains(t, []codes.Code{codes.NotFound, codes.PermissionDenied}, status.Code(err), "%v", err)
			require.Equal(t, absent(t, s, name, refused, b), fmt.Sprint(status.Code(err)), "it tells that the other's exists")
			if name == "DestroySandbox" {
				return // below, as the last
			}
			_, err = do(a.ctx(t), s.API, a)
			require.NoError(t, err, "its own")
		})
	}
	_, err := calls["DestroySandbox"](a.ctx(t), s.API, a)
	require.NoError(t, err)
	file, err := s.API.ReadFile(b.ctx(t), &computev1.ReadFileRequest{SandboxId: b.sandbox, Path: "file"})
	require.NoError(t, err)
	require.Equal(t, b.name+"\n", string(file.GetData()))
}

// absent is the code for something that nobody has.
func absent(t *testing.T, s *stack.Stack, name string, do call, caller tenant) string {
	t.Helper()
	none := tenant{name: "tenant-of-nobody", sandbox: "00000000-0000-4000-8000-000000000000", exec: "00000000-0000-4000-8000-000000000001"}
	_, err := do(caller.ctx(t), s.API, none)
	require.Error(t, err, name)
	return fmt.Sprint(status.Code(err))
}
