package check_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stack.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = 1
	}
	os.Exit(code)
}

const (
	worker  = "local"
	tenant  = "acme"
	callFor = time.Minute
)

// client makes calls and keeps the journal.
type client struct {
	t    *testing.T
	api  computev1.ComputeServiceClient
	j    *journal.Journal
	name string
}

func (c client) context(key string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.t.Context(), callFor)
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	}
	return ctx, cancel
}

func (c client) create(key string) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Create, Tenant: tenant, Key: key})
	ctx, cancel := c.context(key)
	defer cancel()
	res, err := c.api.CreateSandbox(ctx, &computev1.CreateSandboxRequest{
		TenantId: tenant, SessionId: "chaos", OrgId: "org", Image: stack.Image, Labels: map[string]string{journal.Label: key},
	})
	if err == nil {
		o.Sandbox(res.GetSandboxId())
	}
	return o.Done(err)
}

// exec runs a program and reads its output until its end, or until it has seen some chunks and goes away.
func (c client) exec(sandbox, key string, p journal.Program, leaveAfter int) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Exec, Tenant: tenant, Sandbox: sandbox, Key: key, Program: &p})
	ctx, cancel := c.context(key)
	defer cancel()
	command, args := p.Command()
	stream, err := c.api.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: command, Args: args, Detach: true})
	return o.Done(follow(o, stream, err, leaveAfter))
}

func (c client) attach(exec string, after uint64) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Attach, Tenant: tenant, Exec: exec, After: after})
	ctx, cancel := c.context("")
	defer cancel()
	stream, err := c.api.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: exec, AfterChunk: after})
	return o.Done(follow(o, stream, err, 0))
}

func follow(o *journal.Open, stream grpc.ServerStreamingClient[computev1.ExecEvent], err error, leaveAfter int) error {
	if err != nil {
		return err
	}
	if h, err := stream.Header(); err == nil {
		o.Header(h)
	}
	for n := 1; ; n++ {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		o.Event(e)
		if n == leaveAfter {
			return nil
		}
	}
}

func (c client) cancel(exec string) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Cancel, Tenant: tenant, Exec: exec})
	ctx, cancel := c.context("")
	defer cancel()
	_, err := c.api.CancelExec(ctx, &computev1.CancelExecRequest{ExecId: exec})
	return o.Done(err)
}

func (c client) stop(sandbox, key string) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Stop, Tenant: tenant, Sandbox: sandbox, Key: key})
	ctx, cancel := c.context(key)
	defer cancel()
	_, err := c.api.StopSandbox(ctx, &computev1.StopSandboxRequest{SandboxId: sandbox})
	return o.Done(err)
}

func (c client) restart(sandbox, key string) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Restart, Tenant: tenant, Sandbox: sandbox, Key: key})
	ctx, cancel := c.context(key)
	defer cancel()
	_, err := c.api.StartSandbox(ctx, &computev1.StartSandboxRequest{SandboxId: sandbox})
	return o.Done(err)
}

func (c client) destroy(sandbox string) journal.Call {
	o := c.j.Begin(journal.Call{Client: c.name, Op: journal.Destroy, Tenant: tenant, Sandbox: sandbox})
	ctx, cancel := c.context("")
	defer cancel()
	_, err := c.api.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: sandbox})
	return o.Done(err)
}

// places is how many sandboxes the worker of the real run may have.
const places = 3

// realRun is a small run of the real services in which nothing is broken: what its clients saw and what it left behind.
func realRun(t *testing.T, s *stack.Stack) (journal.History, evidence.Evidence) {
	t.Helper()
	begin := time.Now()
	j, err := journal.Start(t.TempDir(), 1)
	require.NoError(t, err)
	contending := evidence.Contend(s.JS, "R1", 4, 250*time.Millisecond, true)
	c := client{t: t, api: s.API, j: j, name: "c1"}
	var boxes []string
	for i := range places {
		made := c.create(fmt.Sprintf("create-%d", i))
		require.Equal(t, journal.Acknowledged, made.Answer, made.Message)
		boxes = append(boxes, made.Sandbox)
	}
	require.Equal(t, boxes[0], c.create("create-0").Sandbox, "the same key is the same sandbox")
	require.Equal(t, journal.Refused, c.create("one too many").Answer)

	printing := journal.Program{Token: "printing", StdoutLines: 200, StderrLines: 30, Width: 200, ExitCode: 3, Step: 5 * time.Millisecond}
	var clients sync.WaitGroup
	for i, box := range boxes {
		c := client{t: t, api: s.API, j: j, name: fmt.Sprintf("c%d", i+2)}
		clients.Go(func() {
			p := printing
			p.Token = fmt.Sprintf("printing-%d", i)
			left := c.exec(box, "key-"+p.Token, p, 3)
			c.attach(left.Exec, left.Seen[len(left.Seen)-1].Number)
			c.attach(left.Exec, 0)
			c.exec(box, "key-"+p.Token, p, 0)
			c.exec(box, "", journal.Program{Token: fmt.Sprintf("silent-%d", i), ExitCode: 0}, 0)
			c.exec(box, "", journal.Program{Token: fmt.Sprintf("killed-%d", i), StdoutLines: 5, Width: 64, Signal: 9}, 0)
			endless := c.exec(box, "", journal.Program{Token: fmt.Sprintf("endless-%d", i), StdoutLines: 5, Width: 64, Endless: true}, 5)
			c.cancel(endless.Exec)
			c.attach(endless.Exec, 0)
		})
	}
	clients.Wait()
	running := c.exec(boxes[2], "", journal.Program{Token: "to the end", StdoutLines: 5, Width: 64, Endless: true}, 1)
	require.Equal(t, journal.Acknowledged, running.Answer)
	for _, box := range boxes[1:] {
		require.Equal(t, journal.Acknowledged, c.destroy(box).Answer)
	}
	require.Equal(t, journal.Acknowledged, c.create("freed").Answer, "the place of a destroyed one is free")
	stillness(t, c, boxes[0])
	require.NoError(t, j.Close())

	e, err := evidence.Collect(t.Context(), evidence.Sources{
		JS: s.JS, ClickHouse: s.ClickHouse, StateDirs: map[string]string{worker: s.State},
		Limits:  evidence.Limits{Sandboxes: map[string]int{worker: places}, PerTenant: places},
		Appends: []evidence.AppendHistory{contending.Stop()},
		Samples: []evidence.Sample{{At: begin, Worker: worker, Sandboxes: boxes}},
	}, check.Open)
	require.NoError(t, err)
	require.True(t, e.Settled.Agreed, "%+v", e.Settled)
	t.Logf("%d calls, %d events, agreed within %s; all of it took %s", len(j.History().Calls), len(e.Events), e.Settled.Took, time.Since(begin))
	return j.History(), e
}

// stillness stops a sandbox and starts it again, and leaves another one stopped.
func stillness(t *testing.T, c client, box string) {
	t.Helper()
	c.exec(box, "", journal.Program{Token: "to the stop", StdoutLines: 5, Width: 64, Endless: true}, 1)
	for _, call := range []journal.Call{c.stop(box, "stop-0"), c.stop(box, "stop-0"), c.restart(box, "start-0"), c.restart(box, "start-0")} {
		require.Equal(t, journal.Acknowledged, call.Answer, call.Message)
	}
	c.exec(box, "", journal.Program{Token: "behind the start"}, 0)
	still := c.create("still").Sandbox
	c.exec(still, "", journal.Program{Token: "before the stop"}, 0)
	require.Equal(t, journal.Acknowledged, c.stop(still, "stop-still").Answer)
	require.Equal(t, journal.Refused, c.exec(still, "", journal.Program{Token: "behind the stop"}, 0).Answer)
}
