package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a command inside the group, so that everything of it, from its first page on, counts. On version 1 a child begins
// in the groups of the thread that makes it: one thread enters them for that and ends. A program that enters and then becomes the
// command would cost a start of its own.
func (g *Group) Start(cmd *exec.Cmd) error {
	if g.v2 != "" {
		dir, err := os.Open(g.v2)
		if err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
		defer dir.Close()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	var tasks []string
	for _, d := range g.dirs() {
		if d != g.v2 {
			tasks = append(tasks, filepath.Join(d, "tasks"))
		}
	}
	if len(tasks) == 0 {
		return cmd.Start()
	}
	var err error
	inThread(func() {
		for _, file := range tasks {
			// 0 is the thread that writes it.
			if err = os.WriteFile(file, []byte("0"), 0); err != nil {
				err = fmt.Errorf("enter cgroup: %w", err)
				return
			}
		}
		err = cmd.Start()
	})
	return err
}

// inThread runs f in a thread that ends with it, and waits. The process's first thread would only sleep for ever, in the groups
// that f entered; while it is held here, the next one cannot be it.
func inThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			inThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
