// Package guest is the first process inside a sandbox: it reaps orphans and signals process trees for the keeper, which
// it talks to over its standard input and output. It ends when its input does, and the sandbox with it: a keeper that was
// killed leaves no sandbox behind.
package guest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
)

// Ready is the first line that init writes.
const Ready = "ready"

// maxRounds bounds the rounds of one kill. A round signals every process of the tree that it sees.
const maxRounds = 200

// Init serves until in ends. Requests are lines "kill GROUP SIGNAL", "all SIGNAL" and "name HOSTNAME"; each is answered with one line:
// the number of processes reached, or "error" and a reason.
func Init(in io.Reader, out io.Writer) error {
	// A few kilobytes live: a collector that waits for 4 MiB of garbage costs more than it saves.
	debug.SetGCPercent(25)
	if err := becomeRoot(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD)
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	go reap(signals)
	if _, err := fmt.Fprintln(out, Ready); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer := "error"
		if n, err := serve(lines.Text()); err == nil {
			answer = strconv.Itoa(n)
		} else {
			answer += " " + err.Error()
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// becomeRoot takes the guest's root where init was started as the user that programs have: they could signal it.
func becomeRoot() error {
	if os.Getuid() == 0 {
		return nil
	}
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return fmt.Errorf("become root: %w", err)
	}
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		return fmt.Errorf("become root: %w", err)
	}
	return nil
}

// reap takes every dead child; signals are merged, so each means "some".
func reap(signals <-chan os.Signal) {
	for range signals {
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
		}
	}
}

func serve(line string) (int, error) {
	var group uint32
	var sig int
	if n, _ := fmt.Sscanf(line, "kill %d %d", &group, &sig); n == 2 {
		return killGroup(group, syscall.Signal(sig))
	}
	if n, _ := fmt.Sscanf(line, "all %d", &sig); n == 1 {
		if err := syscall.Kill(-1, syscall.Signal(sig)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, err
		}
		return 1, nil
	}
	var name string
	if n, _ := fmt.Sscanf(line, "name %63s", &name); n == 1 {
		return 1, rename(name)
	}
	return 0, errors.New("unknown request")
}

// killGroup signals every process that has the supplementary group. Programs cannot leave a group, and children inherit it,
// whatever session or parent they take. For KILL the tree is stopped first: stopped processes still count against the limit
// of processes, so that a fork bomb cannot outrun the rounds.
func killGroup(group uint32, sig syscall.Signal) (int, error) {
	if sig != syscall.SIGKILL {
		members, err := scan(group)
		if err != nil {
			return 0, err
		}
		for _, pid := range members {
			_ = syscall.Kill(pid, sig)
		}
		return len(members), nil
	}
	stopped := map[int]bool{}
	for range maxRounds {
		members, err := scan(group)
		if err != nil {
			return 0, err
		}
		fresh := false
		for _, pid := range members {
			if !stopped[pid] {
				fresh, stopped[pid] = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if !fresh {
			break
		}
	}
	return len(stopped), finish(group)
}

// finish kills the group until none is left, the dead included: those count against the limit of processes until they are
// waited for, and the next command must not fail for that. Two empty scans, since one misses a process that was being made.
func finish(group uint32) error {
	for empty, round := 0, 0; round < maxRounds; round++ {
		members, err := scanState(group, true)
		if err != nil {
			return err
		}
		if len(members) > 0 {
			empty = 0
		} else if empty++; empty == 2 {
			return nil
		}
		for _, pid := range members {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if round > 2 {
			time.Sleep(time.Millisecond)
		}
	}
	return errors.New("processes are left")
}

// scan lists the living processes that have the group.
func scan(group uint32) ([]int, error) { return scanState(group, false) }

func scanState(group uint32, dead bool) ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := proc.Readdirnames(-1)
	proc.Close()
	if err != nil {
		return nil, err
	}
	want := strconv.FormatUint(uint64(group), 10)
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 {
			continue
		}
		status, err := os.ReadFile("/proc/" + name + "/status")
		if err == nil && member(status, want, dead) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// member reads /proc/PID/status. The dead count only where asked for.
func member(status []byte, group string, dead bool) bool {
	found := false
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("State:")); ok && !dead {
			if s := bytes.TrimSpace(rest); len(s) > 0 && (s[0] == 'Z' || s[0] == 'X') {
				return false
			}
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Groups:")); ok {
			for _, g := range bytes.Fields(rest) {
				found = found || string(g) == group
			}
		}
	}
	return found
}
