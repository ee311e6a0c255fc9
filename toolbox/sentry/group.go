package sentry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Census is what one look at all processes of a sandbox found, while none of them ran.
type Census struct {
	// Members are the living processes of the groups that were asked for.
	Members int
	// Tasks is as the answer of Control.Tasks.
	Tasks map[uint32]int
}

const (
	// pauseTimeout bounds the wait for all tasks to stand still, each is where it may be interrupted within a moment;
	// pausedTimeout what is done meanwhile, while every program of the sandbox waits.
	pauseTimeout  = 5 * time.Second
	pausedTimeout = 10 * time.Second
	// maxStatus is read of all processes' status files together.
	maxStatus = 64 << 20
)

// pausing is held while this process has a sandbox stand still.
type pausing struct{ mu sync.Mutex }

// SignalGroup implements Control. The sandbox stands still from the look at its processes until all have the signal, so that no
// program can outrun it by forking, nor delay it by keeping every CPU busy: no code of the guest takes part.
func (c *Client) SignalGroup(ctx context.Context, member func(group uint32) bool, signal syscall.Signal) (Census, error) {
	c.pausing.mu.Lock()
	resume, err := c.pause(ctx)
	if err != nil {
		c.pausing.mu.Unlock()
		return Census{}, err
	}
	defer func() {
		resume()
		c.pausing.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, pausedTimeout)
	defer cancel()
	census, members, err := c.census(ctx, member)
	if err != nil {
		return census, err
	}
	for _, pid := range members {
		if signal == 0 {
			break
		}
		// One that cannot have it does not keep it from the others.
		if e := c.Signal(ctx, pid, signal); e != nil {
			err = errors.Join(err, e)
		}
	}
	return census, err
}

// looks is how often the processes are listed where one of them has gone before it was looked at: an end that was under way
// when the sandbox came to stand still.
const looks = 3

// census lists all processes, and the members among them.
func (c *Client) census(ctx context.Context, member func(uint32) bool) (census Census, members []int32, err error) {
	for range looks {
		list, err := c.processes(ctx)
		if err != nil {
			return Census{}, nil, err
		}
		census = Census{Tasks: tasks(list)}
		if members, err = c.members(ctx, list, member); !errors.As(err, new(*Error)) {
			break
		}
	}
	census.Members = len(members)
	return census, members, err
}

func (c *Client) processes(ctx context.Context) (list []guestProcess, err error) {
	return list, c.call(ctx, "containerManager.Processes", c.container, &list)
}

func tasks(list []guestProcess) map[uint32]int {
	count := map[uint32]int{}
	for _, p := range list {
		count[p.UID] += max(len(p.Threads), 1)
	}
	return count
}

// Tasks implements Control.
func (c *Client) Tasks(ctx context.Context) (map[uint32]int, error) {
	list, err := c.processes(ctx)
	return tasks(list), err
}

// Written implements Control.
func (c *Client) Written() uint64 { return c.written.Load() }

// pause has every task of the sandbox stand still until resume is called. A pause that takes too long is an error; it is
// ended as soon as it begins.
func (c *Client) pause(ctx context.Context) (func(), error) {
	k, err := c.take(ctx)
	if err != nil {
		return nil, err
	}
	// Both go over one connection, which the sentry serves in order: a resume that came first would be its end.
	paused := make(chan error, 1)
	go func() { paused <- k.exchange("containerManager.Pause", nil, nil, nil) }()
	resume := func() {
		if k.exchange("containerManager.Resume", nil, nil, nil) == nil {
			c.give(k)
		} else {
			k.c.Close()
		}
	}
	late := time.NewTimer(pauseTimeout)
	defer late.Stop()
	select {
	case err := <-paused:
		if err != nil {
			k.c.Close()
			return nil, fmt.Errorf("pause: %w", err)
		}
		return resume, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-late.C:
		err = context.DeadlineExceeded
	}
	go func() {
		if <-paused == nil {
			resume()
		} else {
			k.c.Close()
		}
	}()
	return nil, fmt.Errorf("pause: %w", err)
}

// divider is a file of one line that is the same at any time and too long for the name of a process: no name can look like it.
const divider = "/proc/version"

// members are the living processes that have one of the groups. The sandbox must stand still.
func (c *Client) members(ctx context.Context, list []guestProcess, member func(uint32) bool) ([]int32, error) {
	files := []string{divider}
	for _, p := range list {
		files = append(files, "/proc/"+strconv.Itoa(int(p.PID))+"/status", divider)
	}
	out, err := memory("proc", nil)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if err := c.call(ctx, "Fs.Cat", map[string]any{"files": files}, nil, out); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.NewSectionReader(out, 0, maxStatus))
	c.written.Add(uint64(len(text)))
	if err != nil {
		return nil, err
	}
	return parseStatuses(text, list, member)
}

var errStatuses = errors.New("the sentry's list of processes is not as expected")

// parseStatuses reads the status files of the processes in the list, one divider before, between and behind them.
func parseStatuses(text []byte, list []guestProcess, member func(uint32) bool) ([]int32, error) {
	line, _, ok := bytes.Cut(text, []byte{'\n'})
	if !ok || len(line) <= maxComm {
		return nil, errStatuses
	}
	parts := bytes.Split(text, append(line, '\n'))
	if len(parts) != len(list)+2 {
		return nil, errStatuses
	}
	var pids []int32
	for i, status := range parts[1 : len(parts)-1] {
		if alive(status) && inGroup(status, member) {
			pids = append(pids, list[i].PID)
		}
	}
	return pids, nil
}

// lastLine is what stands behind the key where a line begins with it for the last time. A name, which comes first and is the
// program's to choose, may hold lines of its own.
func lastLine(status []byte, key string) []byte {
	at := bytes.LastIndex(status, []byte("\n"+key))
	if at < 0 {
		return nil
	}
	line, _, _ := bytes.Cut(status[at+1+len(key):], []byte{'\n'})
	return bytes.TrimSpace(line)
}

// alive: the process still runs code, or may again.
func alive(status []byte) bool {
	state := lastLine(status, "State:")
	return len(state) > 0 && state[0] != 'Z' && state[0] != 'X'
}

func inGroup(status []byte, member func(uint32) bool) bool {
	for _, f := range bytes.Fields(lastLine(status, "Groups:")) {
		if n, err := strconv.ParseUint(string(f), 10, 32); err == nil && member(uint32(n)) {
			return true
		}
	}
	return false
}
