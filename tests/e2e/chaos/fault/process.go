package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// kills are kinds that end a process by SIGKILL. Of what the supervisor runs it is started again when the fault is healed.
func kills(r *rig.Rig) []kind {
	all := []kind{
		{"kill-keeper", 2, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) { return killMember(r, rnd, rig.Keeper) }},
		{"kill-sandbox", 2, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) { return killMember(r, rnd, rig.Sentry) }},
	}
	for _, p := range r.Processes() {
		// Two nodes down at once are more than a cluster of three outlives: that is a kind of its own.
		if r.Replicas > 1 && strings.HasPrefix(p.Name, "nats") {
			continue
		}
		all = append(all, kind{"kill-" + group(p.Name), 3, func(_ *rig.Rig, rnd *rand.Rand) (Fault, bool) {
			return endProcess(p, syscall.SIGKILL, between(rnd, 0, 2*time.Second)), true
		}})
		if strings.HasPrefix(p.Name, "nats") {
			all = append(all, kind{"restart-nats", 2, func(_ *rig.Rig, rnd *rand.Rand) (Fault, bool) {
				return endProcess(p, syscall.SIGTERM, between(rnd, 0, 2*time.Second)), true
			}})
		}
	}
	if r.Form == rig.AllInOne {
		all = append(all, kind{"kill-clickhouse", 2, killEngine})
	}
	return all
}

// group is a process's name without its number.
func group(name string) string { return strings.TrimRight(name, "0123456789") }

func endProcess(p *rig.Process, sig syscall.Signal, hold time.Duration) Fault {
	return Fault{
		Target: p.Name, Hold: hold,
		inject: func(context.Context) error { return p.Kill(sig) },
		heal:   func(context.Context) error { p.Release(); return nil },
	}
}

func killMember(r *rig.Rig, rnd *rand.Rand, part rig.Part) (Fault, bool) {
	m, ok := member(r, rnd, part)
	return Fault{Target: m.Sandbox, inject: func(context.Context) error { return send(m.PID, syscall.SIGKILL) }}, ok
}

func member(r *rig.Rig, rnd *rand.Rand, part rig.Part) (rig.Member, bool) {
	var all []rig.Member
	for _, m := range r.Members() {
		if m.Part == part {
			all = append(all, m)
		}
	}
	return oneOf(rnd, all)
}

// send signals a process; one that has ended meanwhile is no error.
func send(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %d: %w", pid, err)
	}
	return nil
}

// killEngine kills the ClickHouse that `up` has started, which starts it again.
func killEngine(r *rig.Rig, _ *rand.Rand) (Fault, bool) {
	parent := r.Process(rig.UpProcess).PID()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if parent == 0 || err != nil {
		return Fault{}, false
	}
	for _, child := range append(strings.Fields(string(children)), otherChildren(parent)...) {
		line, err := os.ReadFile("/proc/" + child + "/cmdline")
		if err == nil && strings.HasPrefix(string(line), "sandtrail-clickhouse") {
			var pid int
			if _, err := fmt.Sscan(child, &pid); err != nil {
				return Fault{}, false
			}
			return Fault{Target: rig.ClickHouse, inject: func(context.Context) error { return send(pid, syscall.SIGKILL) }}, true
		}
	}
	return Fault{}, false
}

// otherChildren are those that other threads than the first have started.
func otherChildren(parent int) []string {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", parent))
	if err != nil {
		return nil
	}
	var all []string
	for _, t := range threads {
		if children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", parent, t.Name())); err == nil {
			all = append(all, strings.Fields(string(children))...)
		}
	}
	return all
}

// pauses are kinds that stop a process for a while by SIGSTOP: it holds its connections and locks and does nothing.
func pauses(r *rig.Rig) []kind {
	all := []kind{
		{"pause-keeper", 1, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) { return pauseMember(r, rnd, rig.Keeper) }},
		{"pause-sandbox", 1, func(r *rig.Rig, rnd *rand.Rand) (Fault, bool) { return pauseMember(r, rnd, rig.Sentry) }},
	}
	for _, p := range r.Processes() {
		all = append(all, kind{"pause-" + group(p.Name), 1, func(_ *rig.Rig, rnd *rand.Rand) (Fault, bool) {
			pid := p.PID()
			return pause(p.Name, pid, between(rnd, 100*time.Millisecond, 4*time.Second)), pid != 0
		}})
	}
	return all
}

func pauseMember(r *rig.Rig, rnd *rand.Rand, part rig.Part) (Fault, bool) {
	m, ok := member(r, rnd, part)
	return pause(m.Sandbox, m.PID, between(rnd, 100*time.Millisecond, 4*time.Second)), ok
}

func pause(target string, pid int, hold time.Duration) Fault {
	return Fault{
		Target: target, Hold: hold,
		inject: func(context.Context) error { return send(pid, syscall.SIGSTOP) },
		heal:   func(context.Context) error { return send(pid, syscall.SIGCONT) },
	}
}
