package process

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Reap takes the end of processes that this one got as the first of its namespace, until ctx ends: containerd's shims leave their parent.
func (s *Set) Reap(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	// Signals of children that end at once are merged.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-children:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.reapOrphans()
	}
}

func (s *Set) reapOrphans() {
	dead := zombies()
	if len(dead) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range dead {
		if !s.own(pid) {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// own says whether somebody here waits for a process; mu is held, and a process is made and noted under it.
func (s *Set) own(pid int) bool {
	for _, p := range s.programs {
		if p.cmd.Process.Pid == pid && p.running() {
			return true
		}
	}
	return s.helpers[pid]
}

// zombies are the ended children of this process.
func zombies() []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var dead []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var state string
		var parent int
		if _, err := fmt.Sscan(string(text[strings.LastIndexByte(string(text), ')')+1:]), &state, &parent); err != nil || state != "Z" || parent != os.Getpid() {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			dead = append(dead, pid)
		}
	}
	return dead
}
