package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// upWorker is the name of the worker that `up` runs.
const upWorker = "local"

// deadLetter is a letter as `sandtrail dlq ls -o json` shows it.
type deadLetter struct {
	ID       uint64 `json:"id"`
	Consumer string `json:"consumer"`
	Reason   string `json:"reason"`
	Cause    string `json:"error_reason"`
	Error    string `json:"error_message"`
	Subject  string `json:"subject"`
	Sequence uint64 `json:"sequence"`
}

func dlqCommand(t *testing.T, s *stack.Stack, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(stack.Bin(t), "sandtrail"), append([]string{"dlq"}, args...)...)
	cmd.Env = append(cmd.Environ(), "SANDTRAIL_NATS="+s.NATS, "SANDTRAIL_OPERATOR=ann")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func deadLetters(t *testing.T, s *stack.Stack, args ...string) []deadLetter {
	t.Helper()
	out, err := dlqCommand(t, s, append([]string{"ls", "--limit", "0", "-o", "json"}, args...)...)
	require.NoError(t, err, out)
	var all []deadLetter
	require.NoError(t, json.Unmarshal([]byte(out), &all), out)
	return all
}

// Whatever is published to the real services' consumers between good work, the good work is done, and what is bad stands aside with its
// reason, once for each consumer that could not take it.
func TestPoisonBetweenGoodMessagesIsSetAsideWithItsReason(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes")
	}
	s := stack.Up(t)
	box := s.Ready(t)
	stranger, secret := ids.New(), "hunter2-payload"
	lost := materialise(t, stranger)
	elsewhere := materialise(t, ids.New())
	subjects := []string{
		subject.SandboxCommand("acme", stranger), subject.WorkerCommand(upWorker, "acme", stranger), subject.ExecCommand(upWorker, "acme", box, ids.New()),
	}
	send := func(m *nats.Msg) {
		t.Helper()
		_, err := s.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err, m.Subject)
	}
	for i, body := range [][]byte{[]byte("\xff" + secret), nil, elsewhere, []byte(secret), make([]byte, 1<<20)} {
		for _, to := range subjects {
			send(&nats.Msg{Subject: to, Data: body, Header: nats.Header{"Sandtrail-Correlation": {fmt.Sprint("c", i)}}})
		}
		require.Zero(t, s.Exec(t, box, "true").Completed.GetExitCode())
	}
	send(&nats.Msg{Subject: "cmd.sandbox.nonsense", Data: []byte(secret)})
	send(&nats.Msg{Subject: subjects[1], Data: lost})
	// Events that are none, in histories of their own.
	for _, agg := range []subject.Aggregate{subject.Sandbox("acme", ids.New()), subject.Exec("acme", box, ids.New())} {
		send(&nats.Msg{Subject: agg.Subject(), Data: []byte(secret)})
		send(&nats.Msg{Subject: agg.Subject(), Data: []byte("\x0a\xff" + secret), Header: nats.Header{
			envelope.HeaderID: {ids.New()}, envelope.HeaderType: {"sandtrail.events.v1.SandboxReady"}, envelope.HeaderSchema: {"1"},
			envelope.HeaderTime: {time.Now().UTC().Format(time.RFC3339Nano)},
		}})
	}
	require.ErrorContains(t, func() error {
		_, err := s.JS.PublishMsg(t.Context(), &nats.Msg{Subject: subjects[0], Data: make([]byte, topology.MaxCommandSize+1)})
		return err
	}(), "exceeds maximum", "what no letter could hold is not taken")

	second := s.Ready(t)
	done := s.Exec(t, second, "echo", "good")
	require.Equal(t, "good\n", string(done.Stdout))
	require.NotNil(t, s.Usage(t, done.ID), "it is billed although facts before it were none")
	require.Contains(t, s.SandboxEvents(t, second), "SandboxReady")

	// Five of each consumer of commands, and what only one of them got; of each event one for each of its readers.
	want := map[string]int{
		topology.ConsumerScheduler: 6, topology.ConsumerWorker(upWorker): 6, topology.ConsumerExec(upWorker): 5,
		topology.CheckpointUsage: 4, topology.ConsumerSettle: 2, "sandbox-view-v1": 2, "exec-receipt-v1": 2, "starts-" + upWorker + "-v1": 2,
	}
	var letters []deadLetter
	require.Eventually(t, func() bool {
		got := map[string]int{}
		letters = deadLetters(t, s)
		for _, l := range letters {
			got[l.Consumer]++
		}
		for consumer, n := range want {
			if got[consumer] != n {
				return false
			}
		}
		return len(got) == len(want)
	}, 2*time.Minute, time.Second, "%v", &letters)
	causes := map[string]int{}
	for _, l := range letters {
		require.Equal(t, "poison", l.Reason)
		require.NotContains(t, fmt.Sprint(l), "hunter2")
		causes[l.Cause]++
	}
	require.Equal(t, 1, causes["sandbox_not_found"], "%v", causes)
	require.Positive(t, causes["undecodable"])
	require.Positive(t, causes["misaddressed"])
	require.Zero(t, causes["internal"], "each says what is wrong: %v", letters)

	redriveOnce(t, s, stranger, letters)
	dropRest(t, s)
	s.Destroy(t, box)
	s.Destroy(t, second)
}

// materialise is a command to make a sandbox.
func materialise(t *testing.T, sandbox string) []byte {
	t.Helper()
	data, err := proto.Marshal(&commandsv1.WorkerCommand{
		CommandId: ids.New(), TenantId: "acme", SandboxId: sandbox, Time: timestamppb.Now(), Command: &commandsv1.WorkerCommand_Materialise{Materialise: &commandsv1.Materialise{}},
	})
	require.NoError(t, err)
	return data
}

// redriveOnce takes the cause of one letter away, a sandbox that was never requested, and redrives it several times at once: the sandbox
// starts, once.
func redriveOnce(t *testing.T, s *stack.Stack, sandbox string, letters []deadLetter) {
	t.Helper()
	var id string
	for _, l := range letters {
		if l.Cause == "sandbox_not_found" {
			id = fmt.Sprint(l.ID)
		}
	}
	out, err := dlqCommand(t, s, "redrive", id, "--dry-run")
	require.NoError(t, err, out)
	require.Contains(t, out, "would be redriven")
	log := jslog.New(s.JS)
	_, err = log.Append(t.Context(), subject.Sandbox("acme", sandbox), eventlog.Tail{}, envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Actor: "service:lifecycle", Time: time.Now()},
		Body: &eventsv1.SandboxRequested{
			SandboxId: sandbox, Image: stack.Image, Workspace: &eventsv1.Workspace{SizeBytes: 64 << 20, MountPath: "/workspace"},
			Limits:    &eventsv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 1000, Pids: 64, MaxRuntimeMs: 600_000},
			Placement: &eventsv1.Placement{Worker: upWorker, Driver: "gvisor"}, ExpiresAt: timestamppb.New(time.Now().Add(10 * time.Minute)),
		},
	})
	require.NoError(t, err)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if out, err := dlqCommand(t, s, "redrive", id, "--note", "it is requested now"); err != nil && !strings.Contains(out, "there is no dead letter") {
				t.Error(out)
			}
		})
	}
	group.Wait()
	require.Eventually(t, func() bool {
		e := s.SandboxEvents(t, sandbox)
		return len(e) > 0 && e[len(e)-1] == "SandboxReady"
	}, 2*time.Minute, 200*time.Millisecond)
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, s.SandboxEvents(t, sandbox))
	require.Zero(t, s.Exec(t, sandbox, "true").Completed.GetExitCode())
	s.Destroy(t, sandbox)

	found, err := log.Find(t.Context(), "evt.acme.letter.*")
	require.NoError(t, err)
	h, err := log.Load(t.Context(), found)
	require.NoError(t, err)
	require.Len(t, h.Events, 1, "one decision")
	require.Equal(t, "operator:ann", h.Events[0].Actor)
}

// dropRest drops what can never be handled; what an operator cannot redrive stays until then.
func dropRest(t *testing.T, s *stack.Stack) {
	t.Helper()
	usage := deadLetters(t, s, "--consumer", topology.CheckpointUsage)
	require.Len(t, usage, 4)
	out, err := dlqCommand(t, s, "redrive", "--all", "--consumer", topology.CheckpointUsage)
	require.Error(t, err, "an event that cannot be read is not taken: %s", out)
	require.Len(t, deadLetters(t, s, "--consumer", topology.CheckpointUsage), 4)
	out, err = dlqCommand(t, s, "drop", "--all", "--yes", "--note", "nobody's")
	require.NoError(t, err, out)
	require.Empty(t, deadLetters(t, s))
}
