package app_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const many = 64

// together runs n calls at once and gives their answers.
func together[T any](t *testing.T, n int, call func(i int) (T, error)) []T {
	t.Helper()
	all, errs := make([]T, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i], errs[i] = call(i) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return all
}

func TestCreateOnceAKey(t *testing.T) {
	w := newWorld(t, map[string]string{"alice": "acme", "carol": "acme", "bob": "globex"})
	_, conn := w.gateway(w.connect())
	clients := []computev1.ComputeServiceClient{w, computev1.NewComputeServiceClient(conn)}
	ctx := keyed(w.as("alice"), "k")
	req := func() *computev1.CreateSandboxRequest {
		return &computev1.CreateSandboxRequest{Image: "python", EnvVars: map[string]string{"A": "1", "B": "2", "C": "3"}}
	}
	made := together(t, many, func(i int) (string, error) {
		r, err := clients[i%2].CreateSandbox(ctx, req())
		return r.String(), err
	})
	for _, m := range made {
		require.Equal(t, made[0], m)
	}
	again, err := w.CreateSandbox(ctx, req())
	require.NoError(t, err)
	require.Equal(t, made[0], again.String())

	other := req()
	other.SessionId = "s"
	_, err = w.CreateSandbox(ctx, other)
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.Equal(t, "idempotency_mismatch", detail(t, err).GetReason())
	_, err = w.CreateSandbox(keyed(w.as("carol"), "k"), req())
	require.Equal(t, "idempotency_mismatch", detail(t, err).GetReason(), "the principal belongs to the request")
	elsewhere, err := w.CreateSandbox(keyed(w.as("bob"), "k"), req())
	require.NoError(t, err)
	require.NotEqual(t, again.GetSandboxId(), elsewhere.GetSandboxId(), "keys are a tenant's own")

	events, err := w.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	info, err := events.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2*3, info.State.Msgs, "requested, starting, ready of two sandboxes")
}

// A key that has been forgotten makes another thing of another request, never the old one.
func TestForgottenKey(t *testing.T) {
	w := newWorld(t, nil)
	make := func(session string) string {
		r, err := w.CreateSandbox(keyed(t.Context(), "k"), &computev1.CreateSandboxRequest{TenantId: "acme", Image: "python", SessionId: session})
		require.NoError(t, err)
		return r.GetSandboxId()
	}
	first := make("a")
	s, err := w.JS.Stream(t.Context(), "KV_"+topology.BucketIdem)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context()))
	require.NotEqual(t, first, make("b"))
}

func TestRefusedCreateIsRefusedAgain(t *testing.T) {
	w := newWorld(t, nil)
	for range 3 {
		_, err := w.CreateSandbox(keyed(t.Context(), "k"), &computev1.CreateSandboxRequest{TenantId: "acme", Image: "refused"})
		require.Equal(t, "quota", detail(t, err).GetReason())
	}
}

func TestExecOnceAKey(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	var starts atomic.Int32
	more := make(chan struct{})
	w.peer.script("long", func(x *execution) {
		starts.Add(1)
		lines(x, 0, 5)
		<-more
		lines(x, 5, 5)
		x.complete(0)
	})
	ctx := keyed(t.Context(), "k")
	first := w.exec(ctx, box, "long")
	_, err := first.Header()
	require.NoError(t, err)
	var once sync.Once
	all := together(t, many, func(int) (*transcript, error) {
		s, err := w.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: box, Command: "long"})
		if err != nil {
			return nil, err
		}
		_, err = s.Header()
		once.Do(func() { close(more) })
		return drainStream(s), err
	})
	for _, r := range append(all, drainStream(first), drainStream(w.exec(ctx, box, "long"))) {
		require.NotNil(t, r.completed, "%v", r.failure)
		r.inOrder(t, 1, 10)
		require.Equal(t, all[0].execID, r.execID)
	}
	require.EqualValues(t, 1, starts.Load())
	require.Equal(t, "idempotency_mismatch", detail(t, drainStream(w.exec(ctx, box, "true")).failure).GetReason())
	_, err = w.DestroySandbox(t.Context(), &computev1.DestroySandboxRequest{SandboxId: box})
	require.NoError(t, err)
	require.NotNil(t, drainStream(w.exec(ctx, box, "long")).completed, "also when the sandbox is gone")
}

func TestDestroyAndCancelWithAKey(t *testing.T) {
	w := newWorld(t, nil)
	box, other := w.create(t.Context()), w.create(t.Context())
	ctx := keyed(t.Context(), "k")
	h, err := w.exec(t.Context(), box, "wait").Header()
	require.NoError(t, err)
	id := h.Get("sandtrail-exec-id")[0]
	done := drainStream(w.exec(t.Context(), box, "true")).execID
	together(t, 8, func(int) (*computev1.CancelExecResponse, error) {
		return w.CancelExec(ctx, &computev1.CancelExecRequest{ExecId: id})
	})
	_, err = w.CancelExec(ctx, &computev1.CancelExecRequest{ExecId: done})
	require.Equal(t, "idempotency_mismatch", detail(t, err).GetReason())
	gone := together(t, 8, func(int) (string, error) {
		r, err := w.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: box})
		return r.String(), err
	})
	for _, g := range gone {
		require.Equal(t, gone[0], g)
	}
	_, err = w.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: other})
	require.Equal(t, "idempotency_mismatch", detail(t, err).GetReason())
	d, err := w.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: other})
	require.NoError(t, err)
	require.Equal(t, "ready", d.GetDetail().GetState())
}

func TestAppendOnceAKey(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	_, conn := w.gateway(w.connect())
	clients := []computev1.ComputeServiceClient{w, computev1.NewComputeServiceClient(conn)}
	data := bytes.Repeat([]byte("line\n"), 200_000) // two parts
	write := func(ctx context.Context, c computev1.ComputeServiceClient, data []byte) (int64, error) {
		r, err := c.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: box, Path: "log", Data: data, Append: true})
		if sum := sha256.Sum256(data); err == nil { // first and repeated answers say the same
			require.Equal(t, sum[:], r.GetSha256())
			require.Equal(t, int64(len(w.peer.files["log"])), r.GetSize())
		}
		return r.GetBytesWritten(), err
	}
	ctx := keyed(t.Context(), "k")
	for _, n := range together(t, many, func(i int) (int64, error) { return write(ctx, clients[i%2], data) }) {
		require.EqualValues(t, len(data), n)
	}
	n, err := write(ctx, w, data)
	require.NoError(t, err)
	require.EqualValues(t, len(data), n)
	require.Equal(t, data, w.peer.files["log"])
	_, err = write(ctx, w, data[:10])
	require.Equal(t, "idempotency_mismatch", detail(t, err).GetReason())

	// Its answer is lost: the repeat finds it done. It fails before its end: the repeat does it.
	for i, fails := range []func(p *commandsv1.WritePart) bool{
		func(p *commandsv1.WritePart) bool {
			return p.GetLast() && w.peer.get(func() int { return w.peer.appends }) > 1
		},
		func(p *commandsv1.WritePart) bool { return p.GetOffset() == 0 },
	} {
		var failed atomic.Bool
		w.peer.set(func() {
			w.peer.onPart = func(p *commandsv1.WritePart) error {
				if failed.Load() || p.GetPath() != "log" {
					return nil
				}
				if i == 0 && p.GetLast() {
					w.peer.mu.Lock()
					_, _ = w.peer.write(p)
					w.peer.mu.Unlock()
				}
				if fails(p) {
					failed.Store(true)
					return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "gone")
				}
				return nil
			}
		})
		before := len(w.peer.files["log"])
		ctx := keyed(t.Context(), "k"+uintText(uint64(i)))
		_, err = write(ctx, w, data)
		require.Equal(t, "toolbox_unavailable", detail(t, err).GetReason())
		for range 2 {
			_, err = write(ctx, w, data)
			require.NoError(t, err)
		}
		require.Len(t, w.peer.files["log"], before+len(data))
	}
	_, err = write(t.Context(), w, []byte("x"))
	require.NoError(t, err)
	_, err = write(t.Context(), w, []byte("x"))
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(w.peer.files["log"], []byte("\nxx")), "without a key each is a write")
}

func TestMalformedKey(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	exec := drainStream(w.exec(t.Context(), box, "true")).execID
	fields := map[string]string{"tenant_id": "acme", "image": "python", "command": "true", "path": "f", "sandbox_id": box, "exec_id": exec}
	for _, m := range methods() {
		switch m.Name() {
		case "CreateSandbox", "ExecCommand", "WriteFile", "CancelExec", "DestroySandbox", "ExtendSandbox":
		default:
			continue
		}
		for _, key := range []string{"two words", string(bytes.Repeat([]byte("k"), 201))} {
			_, err := call(keyed(t.Context(), key), w.conn, m, request(t, m, fields))
			require.Contains(t, detail(t, err).GetFields(), "idempotency-key", m.Name())
		}
	}
}
