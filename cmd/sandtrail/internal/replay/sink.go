package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// Nothing is the sink of a dry run: everything is read and decoded.
type Nothing struct{}

// Take implements Sink.
func (Nothing) Take(context.Context, Event) ([]byte, error) { return nil, nil }

// Flush implements Sink.
func (Nothing) Flush(context.Context) error { return nil }

// Size implements Sink.
func (Nothing) Size() int64 { return 0 }

// Lines writes each event as a line of JSON, a CloudEvent. A message that is no event is a line that says so.
type Lines struct {
	out  *bufio.Writer
	file *os.File
	size int64
}

// unreadable is the line of a message that is no event.
type unreadable struct {
	Sequence uint64 `json:"sequence,string"`
	Subject  string `json:"nats_subject"`
	Error    string `json:"error"`
	Data     []byte `json:"data_base64"`
}

// LinesTo writes to w, which cannot be gone on with.
func LinesTo(w io.Writer) *Lines { return &Lines{out: bufio.NewWriterSize(w, 64<<10)} }

// OpenLines begins a file that must not exist, or goes on with one of which so many bytes count: what stands behind them was written by
// a run that did not come to say so, and is written again.
func OpenLines(path string, size int64) (*Lines, error) {
	if size == 0 {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonConflict, "%s is there already; go on with --checkpoint, or remove it", path)
		}
		return lines(f, 0, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < size {
		err = fault.Newf(fault.FailedPrecondition, fault.ReasonConflict, "%s has %d bytes, fewer than the checkpoint says were written", path, info.Size())
	}
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	return lines(f, size, err)
}

func lines(f *os.File, size int64, err error) (*Lines, error) {
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, err
	}
	return &Lines{out: bufio.NewWriterSize(f, 64<<10), file: f, size: size}, nil
}

// Take implements Sink.
func (l *Lines) Take(_ context.Context, e Event) ([]byte, error) {
	line, err := lineOf(e)
	if err != nil {
		return nil, err
	}
	n, err := l.out.Write(line)
	l.size += int64(n)
	if err != nil {
		return nil, fmt.Errorf("write the lines: %w", err)
	}
	return line, nil
}

func lineOf(e Event) ([]byte, error) {
	var v any = unreadable{e.Seq, e.Subject, "the message is no event", e.Data}
	if e.Unreadable == nil {
		c, err := events.CloudEventOf(e.Recorded)
		if err != nil {
			return nil, err
		}
		v = c
	}
	line, err := json.Marshal(v)
	return append(line, '\n'), err
}

// Flush implements Sink.
func (l *Lines) Flush(context.Context) error {
	if err := l.out.Flush(); err != nil {
		return fmt.Errorf("write the lines: %w", err)
	}
	if l.file == nil {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("write the lines: %w", err)
	}
	return nil
}

// Size implements Sink.
func (l *Lines) Size() int64 { return l.size }

// Close closes the file; what was not flushed is left out.
func (l *Lines) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
