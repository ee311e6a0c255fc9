package check_test

import (
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// stillPlants are of sandboxes that are stopped, and of such that were.
var stillPlants = []plant{
	{check.OneOutcome, "a key that stopped a sandbox twice", "it was asked 1 times to stop, and did so 2 times", func(c *copyOf) {
		double[*eventsv1.SandboxStopping](c, c.sandboxSubject(c.made("still")))
	}},
	{check.OneOutcome, "a key that started a sandbox twice", "it was asked 1 times to start, and did so 2 times", func(c *copyOf) {
		c.rewrite(c.sandboxSubject(c.made("create-0")), func(events []envelope.Event) []envelope.Event {
			from := body[*eventsv1.SandboxStopping](events)
			to := from + 1 + body[*eventsv1.SandboxReady](events[from:])
			var turn []envelope.Event
			for _, e := range events[from:to] {
				turn = append(turn, again(e))
			}
			return slices.Insert(slices.Clone(events), to, turn...)
		})
	}},
	{check.OneOutcome, "an acknowledged stop that never came", "1 orders to stop were acknowledged", func(c *copyOf) {
		drop[*eventsv1.SandboxStopped](c, c.sandboxSubject(c.made("still")))
	}},
	{check.OneOutcome, "an acknowledged start that never came", "1 orders to start were acknowledged", func(c *copyOf) {
		c.rewrite(c.sandboxSubject(c.made("create-0")), func(events []envelope.Event) []envelope.Event {
			return events[:1+body[*eventsv1.SandboxStopped](events)]
		})
	}},
	{check.OneOutcome, "an exec that stays open in a stopped sandbox", "has no end", func(c *copyOf) {
		drop[*eventsv1.ExecCompleted](c, c.execSubject("before the stop"))
		c.later(time.Hour)
	}},
	{check.TrueEnd, "an end by a stop of a sandbox that nobody stopped", "its sandbox was not being stopped", func(c *copyOf) {
		change(c, c.execSubject("silent-1"), func(b *eventsv1.ExecCompleted) { b.Reason = "sandbox_stopped" })
	}},
	{check.SameLife, "a process of a stopped sandbox", "it is stopped, and process 1 runs", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Process, Sandbox: c.made("still"), PID: 1, Role: evidence.RoleGuest})
	}},
	{check.NoLeak, "a mount of a stopped sandbox", "it is stopped, and a mount is there", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Mount, Sandbox: c.made("still"), Name: "left over"})
	}},
	{check.NoLeak, "a stopped sandbox without its root", "its root is gone", func(c *copyOf) {
		c.kept(c.made("still")).Detail = ""
	}},
	{check.NoLeak, "a stopped sandbox without its workspace", "its workspace is gone", func(c *copyOf) {
		id := c.made("still")
		c.without(func(r evidence.Resource) bool { return r.Kind == evidence.Workspace && r.Sandbox == id })
	}},
	{check.NoLeak, "a root that runs again and is still kept", "is still kept", func(c *copyOf) {
		c.kept(c.made("create-0")).Detail = evidence.KeptRoot
		c.later(time.Hour)
	}},
	{check.NoLeak, "what a destroyed sandbox kept", "and a kept is there", func(c *copyOf) {
		c.found(evidence.Resource{Kind: evidence.Kept, Sandbox: c.made("create-1"), Name: "left over"})
	}},
	{check.WithinLimits, "a stopped sandbox that holds a place of its worker", "it is stopped, and holds a place", func(c *copyOf) {
		c.places(func(p map[string]any) { p[c.made("still")] = map[string]any{"t": tenant, "s": 1} })
	}},
}

// startsInVain puts a start that came to nothing before the one that did not.
func (c *copyOf) startsInVain(key string) {
	c.rewrite(c.sandboxSubject(c.made(key)), func(events []envelope.Event) []envelope.Event {
		at := body[*eventsv1.SandboxStopped](events)
		starting := at + 1 + body[*eventsv1.SandboxStarting](events[at+1:])
		return slices.Insert(slices.Clone(events), at+1, again(events[starting]), again(events[at]))
	})
}

// kept is what is kept of a sandbox on the host.
func (c *copyOf) kept(id string) *evidence.Resource {
	c.t.Helper()
	i := slices.IndexFunc(c.host().Found, func(r evidence.Resource) bool { return r.Kind == evidence.Kept && r.Sandbox == id })
	if i < 0 {
		c.t.Fatalf("nothing is kept of sandbox %s", id)
	}
	return &c.host().Found[i]
}
