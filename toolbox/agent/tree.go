package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// firstLook and lastLook are between two looks at whether a tree has ended by itself.
	firstLook = 10 * time.Millisecond
	lastLook  = 200 * time.Millisecond
	// maxRounds bounds the rounds of one kill. A round signals every process of the tree that it sees.
	maxRounds = 500
	// ticks of processes' times in a second.
	ticks = 100
)

// process is one below the agent, as /proc tells of it.
type process struct {
	pid, parent, session int
	// began tells it from another that has its pid later.
	began uint64
	dead  bool
	cpu   time.Duration
	// resident memory in bytes.
	resident uint64
}

// below lists the processes below the agent, parents before their children.
func below() ([]process, error) { return descendants(os.Getpid(), "/proc") }

// descendants are the processes below one. Each has one parent, and what is above it is left out, so that the walk ends.
func descendants(root int, procfs string) ([]process, error) {
	proc, err := os.Open(procfs)
	if err != nil {
		return nil, err
	}
	names, err := proc.Readdirnames(-1)
	proc.Close()
	if err != nil {
		return nil, err
	}
	of := map[int][]process{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == root {
			continue
		}
		b, err := os.ReadFile(filepath.Join(procfs, name, "stat"))
		if err != nil {
			continue
		}
		// gVisor gives the pid 0 to one that is waited for while this is read: as the parent of the first process it would make a ring.
		if p, ok := parseStat(b); ok && p.pid == pid {
			of[p.parent] = append(of[p.parent], p)
		}
	}
	found := of[root]
	for i := 0; i < len(found); i++ {
		found = append(found, of[found[i].pid]...)
	}
	return found, nil
}

// parseStat reads /proc/PID/stat. The name in it is the program's to choose: what follows begins behind its last parenthesis.
func parseStat(b []byte) (process, bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return process{}, false
	}
	fields := bytes.Fields(b[end+1:])
	if len(fields) < 22 {
		return process{}, false
	}
	number := func(i int) uint64 {
		n, _ := strconv.ParseUint(string(fields[i]), 10, 64)
		return n
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	const state, parent, session, firstTime, lastTime, began, resident = 0, 1, 3, 11, 14, 19, 21
	p := process{
		pid: pid, parent: int(number(parent)), session: int(number(session)), began: number(began), //nolint:gosec // pids are small
		dead:     fields[state][0] == 'Z' || fields[state][0] == 'X',
		resident: number(resident) * uint64(os.Getpagesize()), //nolint:gosec // not negative
	}
	var used uint64
	for i := firstTime; i <= lastTime; i++ {
		used += number(i)
	}
	p.cpu = time.Duration(used) * time.Second / ticks //nolint:gosec // years
	return p, err == nil
}

// owned are the processes of each program, strays those that have taken their mark off and can be anybody's.
type owned struct {
	of     map[*program][]process
	strays []process
	all    []process
}

// census says whose every process is: below a leader, its program's; an orphan by its mark, or else by its session.
func (a *Agent) census() (owned, error) {
	// Known before looking, so that no process is without the program that started it.
	leaders, marks := map[int]*program{}, map[uint64]*program{}
	a.mu.Lock()
	for _, p := range a.execs {
		if !p.started() {
			continue
		}
		marks[p.mark] = p
		// The pid of one that has ended may be another's by now.
		if had := leaders[p.pid]; had == nil || !had.running() {
			leaders[p.pid] = p
		}
	}
	a.mu.Unlock()
	all, err := below()
	if err != nil {
		return owned{}, err
	}
	o := owned{of: map[*program][]process{}, all: all}
	lowest := a.children.lowestMark()
	whose := map[int]*program{}
	for _, c := range all {
		p := whose[c.parent]
		if p == nil && leaders[c.pid] != nil && leaders[c.pid].running() {
			p = leaders[c.pid]
		}
		mark := uint64(0)
		if p == nil && !c.dead {
			mark = markOf(c.pid)
			p = marks[mark]
		}
		if p == nil {
			p = leaders[c.session]
		}
		switch {
		case p != nil:
			whose[c.pid] = p
			o.of[p] = append(o.of[p], c)
		case !c.dead && mark < lowest && lowest > 0:
			o.strays = append(o.strays, c)
		}
	}
	return o, nil
}

// endTree ends every process of the program: TERM, and KILL for what is left after the grace time. Only the first call counts.
func (a *Agent) endTree(p *program, reason string, grace time.Duration) {
	p.mu.Lock()
	if p.reason != "" {
		p.mu.Unlock()
		return
	}
	p.reason, p.ending = reason, make(chan struct{})
	p.mu.Unlock()
	defer close(p.ending)
	deadline := time.Now().Add(grace)
	n, err := 1, error(nil)
	if grace > 0 {
		n, err = a.signalTree(p, syscall.SIGTERM)
	}
	for wait := firstLook; err == nil && n > 0 && time.Now().Before(deadline); wait = min(2*wait, lastLook) {
		<-time.After(min(wait, time.Until(deadline)))
		n, err = a.signalTree(p, 0)
	}
	if err == nil && n == 0 {
		return
	}
	if err := a.killTree(p); err != nil {
		a.log.Error("tree not ended", "exec", p.id, "error", err)
	}
}

// signalTree sends a signal to the living processes of a program and says how many there are; signal 0 only counts.
func (a *Agent) signalTree(p *program, s syscall.Signal) (int, error) {
	o, err := a.census()
	n := 0
	for _, c := range o.of[p] {
		if c.dead {
			continue
		}
		n++
		if s != 0 {
			_ = syscall.Kill(c.pid, s)
		}
	}
	return n, err
}

func (a *Agent) signalAll(s syscall.Signal) {
	o, _ := a.census()
	for _, c := range o.all {
		_ = syscall.Kill(c.pid, s)
	}
}

// killTree ends the processes of a program and all strays: one that took its mark off is as good as any program's.
func (a *Agent) killTree(p *program) error {
	return a.kill(func() ([]process, error) {
		o, err := a.census()
		return append(o.of[p], o.strays...), err
	})
}

// killAll ends every process.
func (a *Agent) killAll() error { return a.kill(below) }

// kill stops everything first: stopped processes still count against the limit of processes, so that a fork bomb cannot outrun the
// rounds, and their children are not orphans yet. Then it kills until none is left, the dead included: those count against the limit
// too, and the next command must not fail for that.
func (a *Agent) kill(members func() ([]process, error)) error {
	type one struct {
		pid   int
		began uint64
	}
	caught := map[one]bool{}
	for range maxRounds {
		found, err := members()
		if err != nil {
			return err
		}
		fresh := false
		for _, c := range found {
			if !caught[one{c.pid, c.began}] {
				fresh, caught[one{c.pid, c.began}] = true, true
				_ = syscall.Kill(c.pid, syscall.SIGSTOP)
			}
		}
		if !fresh {
			break
		}
	}
	for empty, round := 0, 0; round < maxRounds; round++ {
		found, err := members()
		if err != nil {
			return err
		}
		all, err := below()
		if err != nil {
			return err
		}
		for _, c := range all {
			if caught[one{c.pid, c.began}] {
				found = append(found, c)
			}
		}
		if len(found) > 0 {
			empty = 0
		} else if empty++; empty == 2 {
			return nil
		}
		for _, c := range found {
			_ = syscall.Kill(c.pid, syscall.SIGKILL)
			caught[one{c.pid, c.began}] = true
		}
		a.children.reap()
		if round > 2 {
			<-time.After(time.Millisecond)
		}
	}
	return errors.New("processes are left")
}
