// Package task is what every toolbox does with a program, wherever it runs: its standard streams and environment, those who read its
// output, and the words for its end.
package task

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const (
	// pipeBytes is asked for each pipe.
	pipeBytes = 256 << 10
	// readBytes is one read until a program floods; a packet is never longer.
	readBytes = 64 << 10
	// DrainGrace is how long output may come after the end of the leader, from children that end just behind it.
	DrainGrace = 50 * time.Millisecond
	// stdinWait bounds one Stdin call to a program that does not read.
	stdinWait = 10 * time.Second
	// drainBytes bounds what is read after that: all that a pipe can hold, not what goes on being written.
	drainBytes = 1 << 20
)

var buffers = sync.Pool{New: func() any { b := make([]byte, readBytes); return &b }}

// Output carries one stream of a program into its spool.
type Output struct {
	stream uint32
	spool  *spool.Spool
	count  *atomic.Uint64
	read   *os.File
	// Write is our copy of the program's end. The pipe starts in packet mode, so that the first write of the program is a
	// piece of its own; then it becomes a plain stream, which is faster. Guarded by once.
	Write *os.File
	once  sync.Once
	// ended closes when nothing more is kept.
	ended chan struct{}
}

// pipe makes a pipe of which the end with the given index (0 reads, 1 writes) is ours and does not block the thread. The other
// end is for the sentry and must block: the guest would see O_NONBLOCK in its own descriptor.
func pipe(flags, ours int) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|flags); err != nil {
		return nil, nil, err
	}
	// Larger is faster; at the kernel's limit for one user it stays as it is.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes)
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write"), nil
}

// Pipe is pipe for what is neither recorded nor counted.
func Pipe(ours int) (r, w *os.File, err error) { return pipe(0, ours) }

// NewOutput makes the pipe; Write is the program's end of it. count takes the bytes that come. Pump reads them.
func NewOutput(stream uint32, s *spool.Spool, count *atomic.Uint64) (*Output, error) {
	r, w, err := pipe(unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		// A kernel without packet mode: there the first write may come together with the next.
		r, w, err = pipe(0, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("make output pipe: %w", err)
	}
	return &Output{stream: stream, spool: s, count: count, read: r, Write: w, ended: make(chan struct{})}, nil
}

// plain leaves packet mode and gives up our copy of the program's end.
func (o *Output) plain() {
	o.once.Do(func() {
		if raw, err := o.Write.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err == nil {
					_, _ = unix.FcntlInt(fd, unix.F_SETFL, flags&^unix.O_DIRECT)
				}
			})
		}
		o.Write.Close()
	})
}

// Pump reads until the end of the pipe, or until Finish, and then what is left in it. Where a child of the program still holds
// the pipe, it goes on reading and drops what comes: a closed pipe would kill a server at its next line of log.
func (o *Output) Pump() {
	defer o.read.Close()
	held := o.keep()
	close(o.ended)
	if !held {
		return
	}
	_ = o.read.SetReadDeadline(time.Time{})
	buf := make([]byte, 4<<10)
	for {
		n, err := o.read.Read(buf)
		o.count.Add(uint64(n))
		if err != nil {
			return
		}
	}
}

// keep is the part of Pump that keeps what it reads. True: the pipe has not ended.
func (o *Output) keep() bool {
	defer o.plain()
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	buf := *p
	for {
		n, err := o.read.Read(buf)
		if n > 0 {
			o.plain()
			o.count.Add(uint64(n))
			_ = o.spool.Append(o.stream, buf[:n])
		}
		if n == len(buf) && n < pipeBytes {
			// The pipe was full: from now on it is emptied at one go, which wakes the program less often.
			buf = make([]byte, pipeBytes)
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			o.rest(buf)
			return true
		default:
			return false
		}
	}
}

// rest reads what is in the pipe without waiting for more.
func (o *Output) rest(buf []byte) {
	raw, err := o.read.SyscallConn()
	if err != nil {
		return
	}
	for left := drainBytes; left > 0; {
		var n int
		var err error
		_ = raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) })
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		o.count.Add(uint64(n))
		_ = o.spool.Append(o.stream, buf[:n])
		left -= n
	}
}

// Finish waits for the end of the output once the leader has ended: for the end of the pipe, or for the grace time where a
// child holds it open.
func (o *Output) Finish(until time.Time) {
	o.plain()
	_ = o.read.SetReadDeadline(until)
	<-o.ended
}

// Input is the standard input of a program. A write waits while the program does not read.
type Input struct {
	mu     sync.Mutex
	write  *os.File
	count  *atomic.Uint64
	offset uint64
	closed bool
	// over is set before the lock is had: no write may begin once the program has ended.
	over atomic.Bool
}

// NewInput makes the pipe; the second result is the program's end.
func NewInput(count *atomic.Uint64) (*Input, *os.File, error) {
	r, w, err := pipe(0, 1)
	if err != nil {
		return nil, nil, fmt.Errorf("make input pipe: %w", err)
	}
	return &Input{write: w, count: count}, r, nil
}

// put writes what lies behind the bytes it already has and returns the new offset. A deadline ends it early, with the part
// written counted.
func (in *Input) put(offset uint64, data []byte, eof bool, deadline time.Time) (uint64, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.putLocked(offset, data, eof, deadline)
}

func (in *Input) putLocked(offset uint64, data []byte, eof bool, deadline time.Time) (uint64, error) {
	if offset > in.offset {
		return in.offset, errGap
	}
	data = data[min(in.offset-offset, uint64(len(data))):]
	if len(data) > 0 {
		_ = in.write.SetWriteDeadline(deadline)
		if in.closed || in.over.Load() {
			return in.offset, io.ErrClosedPipe
		}
		n, err := in.write.Write(data)
		in.offset += uint64(n)
		in.count.Add(uint64(n))
		if err != nil {
			return in.offset, err
		}
	}
	if eof {
		in.shut()
	}
	return in.offset, nil
}

// Feed writes the standard input that came with the start, and ends it with eof. It does not wait; what others write comes behind it.
func (in *Input) Feed(data []byte, eof bool) {
	in.mu.Lock()
	go func() {
		defer in.mu.Unlock()
		if _, err := in.putLocked(0, data, eof, time.Time{}); err != nil {
			in.shut()
		}
	}()
}

// Take answers a Stdin call.
func (in *Input) Take(r *toolboxv1.Stdin) (*toolboxv1.StdinReply, error) {
	if in == nil {
		return nil, errInputClosed
	}
	offset, err := in.put(r.Offset, r.Data, r.Eof, time.Now().Add(stdinWait))
	switch {
	case errors.Is(err, errGap):
		return nil, wire.NewError("invalid_argument", "validation", fmt.Sprintf("standard input has %d bytes so far, bytes before the offset are missing", offset))
	case errors.Is(err, os.ErrDeadlineExceeded):
		// What was written is counted; the caller goes on from there.
	case err != nil:
		return nil, errInputClosed
	}
	return &toolboxv1.StdinReply{Offset: offset}, nil
}

var errInputClosed = wire.NewError("failed_precondition", "illegal_state", "standard input of the command is closed")

func (in *Input) shut() {
	if !in.closed {
		in.closed = true
		in.write.Close()
	}
}

// Close ends the input, also under a write that waits.
func (in *Input) Close() {
	in.over.Store(true)
	_ = in.write.SetWriteDeadline(time.Unix(1, 0))
	in.mu.Lock()
	defer in.mu.Unlock()
	in.shut()
}

var errGap = errors.New("bytes before the offset are missing")
