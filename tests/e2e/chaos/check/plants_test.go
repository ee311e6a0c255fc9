package check_test

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// plant damages a clean run in one way, by which it breaks one invariant at least.
type plant struct {
	breaks check.Invariant
	name   string
	// says is a part of what must be said of it.
	says   string
	damage func(*copyOf)
}

var plants = slices.Concat(outcomePlants, startPlants, outputPlants, endPlants, lifePlants, leakPlants, viewPlants, orderPlants, limitPlants, stillPlants)

var outcomePlants = []plant{
	{check.OneOutcome, "an acknowledged create that the log does not know", "the log does not know it", func(c *copyOf) {
		at := c.sandboxSubject(c.made("create-0"))
		c.e.Events = slices.DeleteFunc(c.e.Events, func(e evidence.Event) bool { return e.Subject == at })
	}},
	{check.OneOutcome, "an acknowledged exec that the log does not know", "the log does not know it", func(c *copyOf) {
		at := c.execSubject("silent-0")
		c.e.Events = slices.DeleteFunc(c.e.Events, func(e evidence.Event) bool { return e.Subject == at })
	}},
	{check.OneOutcome, "an exec that ends twice", "it ended 2 times", func(c *copyOf) {
		double[*eventsv1.ExecCompleted](c, c.execSubject("silent-0"))
	}},
	{check.OneOutcome, "an acknowledged exec without an end", "has no end", func(c *copyOf) {
		drop[*eventsv1.ExecCompleted](c, c.execSubject("silent-0"))
		c.later(time.Hour)
	}},
	{check.OneOutcome, "an acknowledged destroy that never came to its end", "it is not destroyed", func(c *copyOf) {
		drop[*eventsv1.SandboxDestroyed](c, c.sandboxSubject(c.made("create-1")))
	}},
	{check.OneOutcome, "an acknowledged cancel of an exec that goes on", "its cancel was acknowledged", func(c *copyOf) {
		drop[*eventsv1.ExecCompleted](c, c.execSubject("endless-0"))
	}},
	{check.OneOutcome, "an acknowledged cancel that an exec outlives", "it ran on for", func(c *copyOf) {
		call := c.call(func(call journal.Call) bool { return call.Op == journal.Cancel && call.Answer == journal.Acknowledged })
		call.Ended = call.Ended.Add(-time.Hour)
		change(c, c.execSubject("endless-0"), func(b *eventsv1.ExecCompleted) { b.WallTimeUs = uint64(time.Hour.Microseconds()) })
	}},
	{check.OneOutcome, "a refused create that made a sandbox", "it was refused and made", func(c *copyOf) {
		c.call(func(call journal.Call) bool { return call.Key == "freed" }).Answer = journal.Refused
	}},
	{check.OneOutcome, "one key that is answered with two sandboxes", "it was answered with", func(c *copyOf) {
		second := c.made("create-1")
		for i := range c.h.Calls {
			if call := &c.h.Calls[i]; call.Key == "create-0" {
				call.Sandbox, second = second, call.Sandbox
			}
		}
	}},
	{check.OneOutcome, "a command that nobody carries out", "its command waits", func(c *copyOf) {
		c.e.Pending = append(c.e.Pending, evidence.Message{Seq: 1 << 40, Subject: "cmd.worker.local.acme.x", Stored: c.e.Taken.Add(-time.Hour)})
	}},
	{check.OneOutcome, "a command that was set aside", "it was set aside", func(c *copyOf) {
		c.e.Dead = append(c.e.Dead, evidence.Message{Subject: "dlq.lifecycle.x.cmd.sandbox.acme.x"})
	}},
	{check.OneOutcome, "a sandbox that is destroyed twice", "it was destroyed 2 times", func(c *copyOf) {
		double[*eventsv1.SandboxDestroyed](c, c.sandboxSubject(c.made("create-1")))
	}},
	{check.OneOutcome, "an exec that stays open in a destroyed sandbox", "has no end", func(c *copyOf) {
		drop[*eventsv1.ExecCompleted](c, c.execSubject("to the end"))
	}},
}

var startPlants = []plant{
	{check.OneStart, "an exec whose start is recorded twice", "the log has 2 starts", func(c *copyOf) {
		double[*eventsv1.ExecStarted](c, c.execSubject("silent-0"))
	}},
	{check.OneStart, "a program that says that it was started twice", "it was started 2 times", func(c *copyOf) {
		c.witness("silent-1").Starts["silent-1"] = 2
	}},
	{check.OneStart, "a program that was started in two sandboxes", "it was started 2 times", func(c *copyOf) {
		c.witness("silent-1").Starts["silent-0"] = 1
	}},
	{check.OneStart, "a program that was started without a start in the log", "the log has no start", func(c *copyOf) {
		c.witness("silent-1").Starts["stranger"] = 1
	}},
	{check.OneStart, "a repeated call that made a second exec", "is there as 2 execs", func(c *copyOf) {
		call := c.of("printing-0")
		for _, e := range c.e.Events {
			if e.Subject == c.execSubject("printing-0") {
				r, _ := e.Decode()
				c.rewriteNew(subject.Exec(tenant, call.Sandbox, ids.New()).Subject(), envelope.Event{Meta: r.Meta, Body: r.Body})
				return
			}
		}
	}},
	{check.OneStart, "an exit of a program that was never started", "left no witness", func(c *copyOf) {
		delete(c.witness("silent-1").Starts, "silent-1")
	}},
}

var outputPlants = []plant{
	{check.TrueOutput, "recorded bytes that the program did not write", "is not what the program writes there", func(c *copyOf) {
		out := c.transcript("printing-0")
		out.Chunks[1].SHA256 = strings.Repeat("0", 64)
		for i := range c.h.Calls {
			for n := range c.h.Calls[i].Seen {
				if c.h.Calls[i].Exec == out.Exec && c.h.Calls[i].Seen[n].Number == out.Chunks[1].Number {
					c.h.Calls[i].Seen[n] = out.Chunks[1]
				}
			}
		}
	}},
	{check.TrueOutput, "a chunk that is lost", "and the program wrote", func(c *copyOf) {
		out := c.transcript("printing-0")
		out.Chunks = out.Chunks[:len(out.Chunks)-1]
	}},
	{check.TrueOutput, "a chunk that is recorded twice, with other bytes", "is recorded twice", func(c *copyOf) {
		out := c.transcript("printing-0")
		more := out.Chunks[2]
		more.SHA256 = strings.Repeat("1", 64)
		out.Chunks = append(out.Chunks, more)
	}},
	{check.TrueOutput, "bytes that were dropped without counting them", "and 0 dropped, recorded are", func(c *copyOf) {
		out := c.transcript("printing-0")
		out.Chunks[1].Gap, out.Chunks[1].SHA256 = true, ""
		c.h.Calls = slices.DeleteFunc(c.h.Calls, func(call journal.Call) bool { return call.Exec == out.Exec && call.Op == journal.Attach })
	}},
	{check.TrueOutput, "a client that saw a chunk twice", "saw chunk 1 where chunk 2 was next", func(c *copyOf) {
		call := c.of("printing-0")
		call.Seen = append(call.Seen[:1:1], call.Seen...)
	}},
	{check.TrueOutput, "a client that missed a chunk", "saw chunk 3 where chunk 2 was next", func(c *copyOf) {
		call := c.of("printing-0")
		call.Seen = slices.Delete(call.Seen, 1, 2)
	}},
	{check.TrueOutput, "a client that saw other bytes", "saw another chunk", func(c *copyOf) {
		c.of("killed-0").Seen[0].SHA256 = strings.Repeat("0", 64)
	}},
	{check.TrueOutput, "a client that was told the end before it had all output", "was told the end behind chunk 0", func(c *copyOf) {
		call := c.of("killed-0")
		call.Seen = nil
	}},
	{check.TrueOutput, "a digest in the receipt of other bytes", "the digest of stdout in its end", func(c *copyOf) {
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.Stdout.Sha256[0] ^= 1 })
	}},
	{check.TrueOutput, "a receipt that counts other bytes", "its end says 6001 bytes of stderr", func(c *copyOf) {
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.Stderr.Bytes++ })
	}},
	{check.TrueOutput, "output of an exec that nobody asked for", "it has recorded output", func(c *copyOf) {
		c.e.Transcripts = append(c.e.Transcripts, evidence.Transcript{Tenant: tenant, Sandbox: ids.New(), Exec: ids.New()})
	}},
	{check.TrueOutput, "a chunk that is lost between others", "is recorded behind 1 chunks", func(c *copyOf) {
		out := c.transcript("printing-0")
		out.Chunks = slices.Delete(out.Chunks, 1, 2)
	}},
	{check.TrueOutput, "a chunk that does not go on where the one before it ended", "chunk 2 of", func(c *copyOf) {
		c.transcript("printing-0").Chunks[1].From += 7
	}},
	{check.TrueOutput, "more output than the program writes", "and the program writes 320", func(c *copyOf) {
		out := c.transcript("killed-0")
		last := out.Chunks[len(out.Chunks)-1]
		last.Number, last.From, last.To = last.Number+1, last.To, last.To+1
		out.Chunks = append(out.Chunks, last)
	}},
	{check.TrueOutput, "a lost exec that counts less than is recorded", "it is lost behind 0 bytes of stdout", func(c *copyOf) {
		c.lose("killed-0", &eventsv1.ExecLost{Reason: "sandbox_lost", LastChunk: uint64(len(c.transcript("killed-0").Chunks))})
	}},
	{check.TrueOutput, "a gap that the end does not tell of", "other gaps of stdout", func(c *copyOf) {
		out := c.transcript("printing-0")
		i := slices.IndexFunc(out.Chunks, func(p journal.Piece) bool { return p.Stream == "stdout" })
		out.Chunks[i].Gap, out.Chunks[i].SHA256 = true, ""
	}},
	{check.TrueOutput, "a client that was told another digest than is recorded", "was told another digest of stdout", func(c *copyOf) {
		c.of("killed-0").End.Stdout.SHA256 = strings.Repeat("0", 64)
	}},
	{check.TrueOutput, "a client that saw what is not recorded", "which is not recorded", func(c *copyOf) {
		call := c.of("killed-0")
		more := call.Seen[len(call.Seen)-1]
		more.Number++
		call.Seen = append(call.Seen, more)
	}},
}

var endPlants = []plant{
	{check.TrueEnd, "an exit code that the program does not give", "its program does not end so", func(c *copyOf) {
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.ExitCode = 0 })
	}},
	{check.TrueEnd, "a signal that nobody sent", "nobody sent it that signal", func(c *copyOf) {
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) {
			b.Reason, b.Signal, b.ExitCode = "signaled", 15, 143
		})
	}},
	{check.TrueEnd, "an end by a cancel that nobody asked for", "nobody asked for its end", func(c *copyOf) {
		drop[*eventsv1.ExecCancelRequested](c, c.execSubject("endless-0"))
	}},
	{check.TrueEnd, "an end by a time limit before its time", "its time was not over", func(c *copyOf) {
		change(c, c.execSubject("endless-0"), func(b *eventsv1.ExecCompleted) { b.Reason = "timed_out" })
	}},
	{check.TrueEnd, "a start that failed, of a program that ran", "its program has begun", func(c *copyOf) {
		change(c, c.execSubject("silent-0"), func(b *eventsv1.ExecCompleted) { b.Reason, b.ExitCode = "start_failed", 126 })
	}},
	{check.TrueEnd, "an end with its sandbox, which goes on", "its sandbox was not being ended", func(c *copyOf) {
		change(c, c.execSubject("endless-0"), func(b *eventsv1.ExecCompleted) { b.Reason = "sandbox_destroyed" })
	}},
	{check.TrueEnd, "a client that was told another code than the log has", "was told the end", func(c *copyOf) {
		c.of("killed-0").End.ExitCode = 0
	}},
	{check.TrueEnd, "a client that was told a code of an exec that is lost", "was told the end", func(c *copyOf) {
		c.lose("silent-0", &eventsv1.ExecLost{Reason: "sandbox_lost"})
	}},
	{check.TrueEnd, "a loss without a reason", "lost without a reason", func(c *copyOf) { c.lose("silent-0", &eventsv1.ExecLost{}) }},
	{check.TrueEnd, "a code that is not the signal's, though the signal was sent", "the code is not the signal's", func(c *copyOf) {
		c.signalled("printing-0", 15)
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.Reason, b.Signal, b.ExitCode = "signaled", 15, 0 })
	}},
	{check.TrueEnd, "a cancel with a code of nobody", "neither its program's nor the signal's", func(c *copyOf) {
		change(c, c.execSubject("endless-0"), func(b *eventsv1.ExecCompleted) { b.Signal, b.ExitCode = 0, 7 })
	}},
	{check.TrueEnd, "a start that failed with a code of success", "cannot be started", func(c *copyOf) {
		delete(c.witness("silent-0").Starts, "silent-0")
		change(c, c.execSubject("silent-0"), func(b *eventsv1.ExecCompleted) { b.Reason = "start_failed" })
	}},
	{check.TrueEnd, "an end with its sandbox and a code of success", "neither its program's nor the signal's", func(c *copyOf) {
		change(c, c.execSubject("to the end"), func(b *eventsv1.ExecCompleted) { b.Signal, b.ExitCode = 0, 0 })
	}},
	{check.TrueEnd, "a lack of memory with another code than the kill's", "the code is not the signal's", func(c *copyOf) {
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.Reason, b.ExitCode = "oom_killed", 1 })
	}},
	{check.TrueEnd, "an end for a reason that there is not", "there is no such reason", func(c *copyOf) {
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.Reason = "tired" })
	}},
}

var lifePlants = []plant{
	{check.SameLife, "a ready sandbox whose sentry is gone", "has 0 processes as sentry", func(c *copyOf) {
		c.without(func(r evidence.Resource) bool {
			return r.Role == evidence.RoleSentry && r.Sandbox == c.made("create-0")
		})
	}},
	{check.SameLife, "a ready sandbox with two keepers", "has 2 processes as keeper", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Process, Role: evidence.RoleKeeper, Sandbox: c.made("create-0"), PID: 1})
	}},
	{check.SameLife, "a process of a destroyed sandbox", "it is destroyed, and process 1 runs", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Process, Role: evidence.RoleSentry, Sandbox: c.made("create-1"), PID: 1})
	}},
	{check.SameLife, "a process of a sandbox that the log does not know", "the log does not know it", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Process, Role: evidence.RoleKeeper, Sandbox: ids.New(), PID: 1})
	}},
	{check.SameLife, "a sandbox that starts for ever", "it is starting since", func(c *copyOf) {
		c.rewrite(c.sandboxSubject(c.made("create-0")), func(events []envelope.Event) []envelope.Event {
			return events[:body[*eventsv1.SandboxReady](events)]
		})
		c.later(time.Hour)
	}},
	{check.SameLife, "a sandbox on another worker than the log says", "it is on worker local", func(c *copyOf) { c.host().Worker = "another" }},
	{check.SameLife, "log and hosts that never agreed", "they did not agree within 1h", func(c *copyOf) {
		c.e.Settled = &evidence.Settling{Took: time.Hour}
	}},
}

// leakKinds are all that a sandbox has on a host.
var leakKinds = []evidence.Kind{
	evidence.Process, evidence.Mount, evidence.Loop, evidence.Cgroup, evidence.Netns, evidence.Socket, evidence.Directory, evidence.File,
}

var leakPlants = func() []plant {
	all := []plant{
		{check.NoLeak, "a workspace that is gone before its time", "is gone from worker", func(c *copyOf) {
			c.without(func(r evidence.Resource) bool { return r.Kind == evidence.Workspace && r.Sandbox == c.made("create-1") })
		}},
		{check.NoLeak, "a workspace that stays behind its time", "was to be kept until", func(c *copyOf) { c.later(100 * 24 * time.Hour) }},
		{check.NoLeak, "a workspace of no sandbox", "the log does not know it", func(c *copyOf) {
			c.found(evidence.Resource{Kind: evidence.Workspace, Sandbox: ids.New(), Name: "/state/workspaces/x.img"})
		}},
		{check.NoLeak, "a process that has ended and that nobody takes", "a zombie of no sandbox", func(c *copyOf) {
			c.found(evidence.Resource{Kind: evidence.Process, Role: evidence.RoleService, Zombie: true, PID: 1})
		}},
		{check.NoLeak, "a key of a destroyed sandbox", "is in bucket name", func(c *copyOf) {
			c.e.Buckets[topology.BucketName]["acme."+c.made("create-1")] = evidence.Value{}
		}},
	}
	all = append(all, plant{check.NoLeak, "a workspace that is there though it is deleted", "its workspace is deleted, and is there", func(c *copyOf) {
		id := c.made("create-1")
		c.rewrite(subject.Workspace(tenant, id).Subject(), func(events []envelope.Event) []envelope.Event {
			e := again(events[0])
			e.Type, e.Body = "", &eventsv1.WorkspaceDeleted{SandboxId: id, Reason: "delete_after"}
			return append(slices.Clone(events), e)
		})
	}}, plant{check.NoLeak, "a process of a live sandbox that has ended and that nobody takes", "nobody has taken its process", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Process, Sandbox: c.made("create-0"), Zombie: true, PID: 1})
	}})
	for _, kind := range leakKinds {
		all = append(all, plant{check.NoLeak, "a " + string(kind) + " of a destroyed sandbox", "and a " + string(kind) + " is there", func(c *copyOf) {
			c.found(evidence.Resource{Kind: kind, Sandbox: c.made("create-1"), Name: "left over"})
		}})
	}
	return all
}()

var viewPlants = []plant{
	{check.SameViews, "a view with another state", "in state", func(c *copyOf) {
		c.view(c.made("create-1"), func(v *commandsv1.SandboxView) { v.State = "ready" })
	}},
	{check.SameViews, "a view with other usage", "in usage", func(c *copyOf) {
		c.view(c.made("create-1"), func(v *commandsv1.SandboxView) { v.Usage.CpuMs++ })
	}},
	{check.SameViews, "a view of nothing", "nothing in the log leads to it", func(c *copyOf) {
		c.e.Buckets[topology.BucketSandbox]["acme."+ids.New()] = evidence.Value{}
	}},
	{check.SameViews, "a receipt that is missing", "it is missing", func(c *copyOf) {
		call := c.of("silent-0")
		delete(c.e.Buckets[topology.BucketExec], tenant+"."+call.Sandbox+"."+call.Exec)
	}},
	{check.SameViews, "a receipt that is behind the log", "in state, completed, ended_at", func(c *copyOf) {
		call := c.of("silent-0")
		entries := c.e.Buckets[topology.BucketExec]
		key := tenant + "." + call.Sandbox + "." + call.Exec
		v := &commandsv1.ExecView{}
		_ = proto.Unmarshal(entries[key].Data, v)
		v.State, v.Completed, v.EndedAt = "running", nil, nil
		data, _ := proto.Marshal(v)
		entries[key] = evidence.Value{Data: data}
	}},
	{check.SameViews, "a row with another quantity", "stdout_bytes (1, not 40000)", func(c *copyOf) { c.row("printing-0")["stdout_bytes"] = json.Number("1") }},
	{check.SameViews, "a row of another session", "session_id (other, not chaos)", func(c *copyOf) { c.row("printing-0")["session_id"] = "other" }},
	{check.SameViews, "a row twice", "there is more than one", func(c *copyOf) { c.e.Execs = append(c.e.Execs, c.row("printing-0")) }},
	{check.SameViews, "a row that is missing", "it is missing", func(c *copyOf) { c.e.Execs = c.e.Execs[1:] }},
	{check.SameViews, "a row of a sandbox that is missing", "it is missing", func(c *copyOf) { c.e.Sandboxes = c.e.Sandboxes[1:] }},
	{check.SameViews, "a row of no exec", "nothing in the log leads to the one", func(c *copyOf) { c.e.Execs = append(c.e.Execs, evidence.Row{"id": ids.New()}) }},
	{check.SameViews, "an event that does not follow from those before it", "does not follow from those before it", func(c *copyOf) {
		double[*eventsv1.SandboxReady](c, c.sandboxSubject(c.made("create-0")))
	}},
	{check.SameViews, "an event that cannot be read", "cannot be read", func(c *copyOf) { c.e.Events[3].Data = []byte{0xff} }},
	{check.SameViews, "a view that cannot be read", "it cannot be read", func(c *copyOf) {
		c.e.Buckets[topology.BucketSandbox][tenant+"."+c.made("create-0")] = evidence.Value{Data: []byte{0xff}}
	}},
}

var orderPlants = []plant{
	{check.OneOrder, "an event that was altered", "damaged", func(c *copyOf) {
		c.e.Events[2].Header[envelope.HeaderActor] = []string{"somebody else"}
	}},
	{check.OneOrder, "an event that was taken out", "damaged", func(c *copyOf) {
		at := c.sandboxSubject(c.made("create-1"))
		i := slices.IndexFunc(c.e.Events, func(e evidence.Event) bool { return e.Subject == at })
		c.e.Events = slices.Delete(c.e.Events, i, i+1)
	}},
	{check.OneOrder, "one event at two places", "has the id of event", func(c *copyOf) {
		more := c.e.Events[2]
		more.Seq = c.e.Events[len(c.e.Events)-1].Seq + 1
		c.e.Events = append(c.e.Events, more)
	}},
	{check.OneOrder, "two appends behind one event", "no order explains", func(c *copyOf) {
		calls := c.e.Appends[0].Calls
		i := slices.IndexFunc(calls, func(a linear.Call) bool { return a.Done })
		more := calls[i]
		more.ID = ids.New()
		c.e.Appends[0].Calls = append(calls, more)
	}},
	{check.OneOrder, "a refused append that nothing stood in the way of", "no order explains", func(c *copyOf) {
		calls := c.e.Appends[0].Calls
		i := slices.IndexFunc(calls, func(a linear.Call) bool { return a.Done })
		calls[i].Done = false
	}},
	{check.OneOrder, "an acknowledged append that is not in the log", "was acknowledged, and is not in the log", func(c *copyOf) {
		done := map[string]bool{}
		for _, a := range c.e.Appends[0].Calls {
			done[a.ID] = a.Done
		}
		i := len(c.e.Events) - 1
		for !done[c.e.Events[i].Header[envelope.HeaderID][0]] {
			i--
		}
		c.e.Events = slices.Delete(c.e.Events, i, i+1)
	}},
	{check.OneOrder, "two events in each other's place", "stands behind event", func(c *copyOf) {
		c.e.Events[4], c.e.Events[5] = c.e.Events[5], c.e.Events[4]
	}},
}

var limitPlants = []plant{
	{check.WithinLimits, "one sandbox more than its worker and tenant may have, at one sequence", "it has 4 sandboxes at event", func(c *copyOf) {
		at := c.sandboxSubject(c.made("create-2"))
		i := slices.IndexFunc(c.e.Events, func(e evidence.Event) bool { return e.Subject == at })
		r, _ := c.e.Events[i].Decode()
		id := ids.New()
		requested := proto.CloneOf(r.Body.(*eventsv1.SandboxRequested))
		requested.SandboxId, requested.Labels = id, nil
		e := envelope.Event{Meta: r.Meta, Body: requested}
		e.ID = ids.New()
		seq := c.e.Events[i].Seq
		c.insert(c.sandboxSubject(id), e, func(e evidence.Event) bool { return e.Seq <= seq })
	}},
	{check.WithinLimits, "one sandbox more than its worker may have, on its host", "4 sandboxes ran", func(c *copyOf) {
		c.e.Samples[0].Sandboxes = append(c.e.Samples[0].Sandboxes, ids.New())
	}},
	{check.WithinLimits, "a sandbox that is larger than its worker", "bytes of memory", func(c *copyOf) {
		c.e.Limits.MemoryBytes = map[string]uint64{worker: 1 << 20}
	}},
	{check.WithinLimits, "a destroyed sandbox that holds a place", "it is destroyed, and holds a place", func(c *copyOf) {
		c.places(func(p map[string]any) { p[c.made("create-1")] = map[string]any{"t": tenant, "s": 1} })
	}},
	{check.WithinLimits, "a place of a sandbox that the log does not know", "the log does not know it", func(c *copyOf) {
		c.places(func(p map[string]any) { p[ids.New()] = map[string]any{"t": tenant, "s": 1} })
	}},
	{check.WithinLimits, "a sandbox that lives without a place", "holds no place", func(c *copyOf) {
		c.places(func(p map[string]any) { delete(p, c.made("create-0")) })
	}},
	{check.WithinLimits, "a sandbox with more processors than its worker", "millicores", func(c *copyOf) {
		c.e.Limits.CPUMillis = map[string]uint64{worker: 1}
	}},
	{check.WithinLimits, "a sandbox that holds a place of another worker", "holds a place of worker.other", func(c *copyOf) {
		entries := c.e.Buckets[topology.BucketPlace]
		entries["worker.other"] = entries["worker."+worker]
	}},
	{check.WithinLimits, "places that cannot be read", "they cannot be read", func(c *copyOf) {
		c.e.Buckets[topology.BucketPlace]["worker."+worker] = evidence.Value{Data: []byte("?")}
	}},
}

// witness is that of the sandbox in which a program ran.
func (c *copyOf) witness(token string) evidence.Witness {
	box := c.of(token).Sandbox
	return c.e.Witnesses[slices.IndexFunc(c.e.Witnesses, func(w evidence.Witness) bool { return w.Sandbox == box })]
}

// rewriteNew puts the first event of a new aggregate behind all others.
func (c *copyOf) rewriteNew(at string, e envelope.Event) {
	e.ID = ids.New()
	m, _, err := envelope.Encode(at, e, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.e.Events = append(c.e.Events, evidence.Event{Seq: c.e.Events[len(c.e.Events)-1].Seq + 1, Subject: at, Header: m.Header, Data: m.Data, Stored: e.Time})
}

func (c *copyOf) view(id string, how func(*commandsv1.SandboxView)) {
	entries := c.e.Buckets[topology.BucketSandbox]
	v := &commandsv1.SandboxView{}
	if err := proto.Unmarshal(entries[tenant+"."+id].Data, v); err != nil {
		c.t.Fatal(err)
	}
	how(v)
	data, err := proto.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	entries[tenant+"."+id] = evidence.Value{Data: data}
}

func (c *copyOf) places(how func(map[string]any)) {
	entries := c.e.Buckets[topology.BucketPlace]
	p := map[string]any{}
	if err := json.Unmarshal(entries["worker."+worker].Data, &p); err != nil {
		c.t.Fatal(err)
	}
	how(p)
	data, err := json.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	entries["worker."+worker] = evidence.Value{Data: data}
}
