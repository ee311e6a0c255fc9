package sentry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"
)

// guestProcess is what the sentry's list of processes has that we use; its times leave out what runs in user mode.
type guestProcess struct {
	PID     int32   `json:"pid"`
	UID     uint32  `json:"uid"`
	Threads []int32 `json:"threads"`
}

const (
	// maxProcesses are looked at for one answer of Times.
	maxProcesses = 512
	// maxProc bounds the two files of one process.
	maxProc = 16 << 10
	// tick is the unit of times in /proc.
	tick = 10 * time.Millisecond
	// maxComm is the longest name of a process.
	maxComm = 15
)

// Times implements Control. The sentry reads its own /proc, without any code of the guest. A process may end meanwhile: it
// is left out then.
func (c *Client) Times(ctx context.Context, groups []uint32) (map[uint32]time.Duration, error) {
	list, err := c.processes(ctx)
	if err != nil {
		return nil, err
	}
	out, err := memory("proc", nil)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	buf := make([]byte, maxProc)
	times := map[uint32]time.Duration{}
	for _, p := range list[:min(len(list), maxProcesses)] {
		dir := "/proc/" + strconv.Itoa(int(p.PID))
		// The order matters to parseProc.
		err := c.call(ctx, "Fs.Cat", map[string]any{"files": []string{dir + "/stat", dir + "/status"}}, nil, out)
		if ctx.Err() != nil || errors.Is(err, ErrGone) {
			return nil, err
		}
		// The sentry's descriptor has the same offset.
		n, e := out.ReadAt(buf, 0)
		c.written.Add(uint64(n)) //nolint:gosec // not negative
		if e != nil && !errors.Is(e, io.EOF) {
			return nil, e
		}
		if e := out.Truncate(0); e != nil {
			return nil, e
		}
		if _, e := out.Seek(0, io.SeekStart); e != nil {
			return nil, e
		}
		if err != nil {
			continue
		}
		used, member := parseProc(buf[:n], groups)
		if member != 0 {
			times[member] += used
		}
	}
	return times, nil
}

// parseProc reads a process's stat, followed by its status: its time with that of the children it waited for, and the group of
// those asked for that it has, or 0. A process chooses its name, which stands early in both.
func parseProc(b []byte, groups []uint32) (time.Duration, uint32) {
	open := bytes.IndexByte(b, '(')
	if open < 0 {
		return 0, 0
	}
	end := bytes.LastIndexByte(b[:min(len(b), open+maxComm+2)], ')')
	if end < open {
		return 0, 0
	}
	line, _, _ := bytes.Cut(b[end+1:], []byte{'\n'})
	// state, ppid, pgrp, session, tty, tpgid, flags, four of faults, utime, stime, cutime, cstime
	fields := bytes.Fields(line)
	if len(fields) < 15 {
		return 0, 0
	}
	var ticks uint64
	for _, f := range fields[11:15] {
		n, err := strconv.ParseUint(string(f), 10, 63)
		if err != nil {
			return 0, 0
		}
		ticks += n
	}
	at := bytes.LastIndex(b, []byte("\nGroups:"))
	if at < 0 {
		return 0, 0
	}
	line, _, _ = bytes.Cut(b[at+len("\nGroups:"):], []byte{'\n'})
	for _, f := range bytes.Fields(line) {
		n, err := strconv.ParseUint(string(f), 10, 32)
		if err == nil && slices.Contains(groups, uint32(n)) {
			return time.Duration(ticks) * tick, uint32(n)
		}
	}
	return 0, 0
}
