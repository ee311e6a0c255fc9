package files

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

func TestFileCalls(t *testing.T) {
	f := natstest.Start(t)
	box := ids.New()
	fake := toolboxtest.NewFake(t, box)
	ctx, stop := context.WithCancel(t.Context())
	s := &Server{
		NC: f.NC, Worker: "w1", Log: slog.New(slog.DiscardHandler),
		Owner: func(_ context.Context, id string) (string, error) {
			if id != box {
				return "", fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "there is no such sandbox")
			}
			return "acme", nil
		},
		Toolbox: func(string) *client.Client { return client.New(fake.Dial, "") },
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	call := func(tenant, id string, c *commandsv1.FileCall) *commandsv1.FileReply {
		t.Helper()
		c.TenantId, c.SandboxId = tenant, id
		data, err := proto.Marshal(c)
		require.NoError(t, err)
		m, err := f.NC.Request(subject.Files("w1", tenant, id), data, 5*time.Second)
		require.NoError(t, err)
		r := &commandsv1.FileReply{}
		require.NoError(t, proto.Unmarshal(m.Data, r))
		return r
	}
	read := func(path string) *commandsv1.FileCall {
		return &commandsv1.FileCall{Call: &commandsv1.FileCall_Read{Read: &commandsv1.ReadPart{Path: path}}}
	}
	write := func(path string, data []byte) *commandsv1.FileCall {
		return &commandsv1.FileCall{Call: &commandsv1.FileCall_Write{Write: &commandsv1.WritePart{
			Path: path, UploadId: ids.New(), Data: data, Last: true,
		}}}
	}
	require.Eventually(t, func() bool {
		_, err := f.NC.Request(subject.Files("w1", "acme", box), nil, time.Second)
		return err == nil
	}, 5*time.Second, time.Millisecond)

	content := []byte("a\x00b\xff\n")
	name := "-- it's \"a\"\nname"
	w := call("acme", box, write(name, content))
	require.Nil(t, w.GetError())
	require.Equal(t, int64(len(content)), w.GetBytesWritten())
	r := call("acme", box, read(name))
	require.Equal(t, content, r.GetData())
	require.True(t, r.GetEof())
	l := call("acme", box, &commandsv1.FileCall{Call: &commandsv1.FileCall_List{List: &commandsv1.ListCall{}}})
	require.Nil(t, l.GetError())
	require.Len(t, l.GetEntries(), 1)
	st := call("acme", box, &commandsv1.FileCall{Call: &commandsv1.FileCall_Stats{Stats: &commandsv1.StatsCall{}}})
	require.Nil(t, st.GetError())

	for reason, reply := range map[string]*commandsv1.FileReply{
		"path_not_found":    call("acme", box, read("missing")),
		"path_escapes":      call("acme", box, read("../../etc/passwd")),
		"too_large":         call("acme", box, write("big", make([]byte, MaxPart+1))),
		"sandbox_not_found": call("evil", box, read(name)),
		"validation":        call("acme", box, &commandsv1.FileCall{}),
	} {
		require.Equal(t, reason, reply.GetError().GetReason(), "%v", reply.GetError())
		require.NotZero(t, reply.GetGrpcCode())
		require.Empty(t, reply.GetData())
	}
	require.Equal(t, "sandbox_not_found", call("acme", ids.New(), read(name)).GetError().GetReason())
	fake.Die()
	gone := call("acme", box, read(name))
	require.Equal(t, "toolbox_unavailable", gone.GetError().GetReason())
	require.Positive(t, gone.GetError().GetRetryAfterSeconds())
	stop()
	require.NoError(t, <-done)
}

// A signal goes to the program of an exec; what is none is refused before anybody is asked.
func TestSignals(t *testing.T) {
	box, exec := ids.New(), ids.New()
	tb := client.New(toolboxtest.NewFake(t, box).Dial, "")
	_, err := tb.Start(t.Context(), &toolboxv1.Start{ExecId: exec, Argv: []string{"sleep", "600"}})
	require.NoError(t, err)
	for name, c := range map[string]*commandsv1.SignalCall{
		"no signal": {ExecId: exec}, "too high": {ExecId: exec, Signal: 65}, "negative": {ExecId: exec, Signal: -1}, "no id": {ExecId: "a.b", Signal: 15},
		"unknown": {ExecId: ids.New(), Signal: 15},
	} {
		_, err := signal(t.Context(), tb, c)
		require.Error(t, err, name)
	}
	_, err = signal(t.Context(), tb, &commandsv1.SignalCall{ExecId: exec, Signal: 15})
	require.NoError(t, err)
	stream, err := tb.Attach(t.Context(), &toolboxv1.Attach{ExecId: exec})
	require.NoError(t, err)
	defer stream.Close()
	for {
		e, err := stream.Recv()
		require.NoError(t, err)
		if end := e.GetEnd(); end != nil {
			require.EqualValues(t, 15, end.GetSignal(), "%v", end)
			return
		}
	}
}
