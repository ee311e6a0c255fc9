package usecase

import (
	"bytes"
	"context"
	"errors"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// Lines are whole lines of an exec's stdout.
type Lines struct {
	// Data ends with the end of a line, or is empty.
	Data []byte
	// Next is the offset behind Data, and Last the number of the last chunk that was looked at, 0 without one.
	Next, Last uint64
	// End is the offset behind all that was there when it was read.
	End uint64
	// Missing: something before Next is no longer kept, or never was.
	Missing bool
	// More: there is more behind Next already.
	More bool
}

var errEnough = errors.New("enough")

// Lines reads what is recorded of an exec's stdout from the beginning of a line on: whole lines of about most bytes, as far as there are any.
func (u *UseCases) Lines(ctx context.Context, p principal.Principal, x sandbox.Exec, from uint64, most int) (Lines, error) {
	if err := p.Need(reading); err != nil {
		return Lines{}, err
	}
	l := lines{Lines: Lines{Next: from}, at: from, most: most}
	first, last, err := output.Behind(ctx, u.js, subject.Exec(x.Tenant, x.Sandbox, x.ID), from)
	if last != nil {
		l.Last, l.End = last.Number, last.StdoutEnd
	}
	if err != nil || first == nil {
		return l.Lines, err
	}
	err = stored.Each(ctx, u.js, u.memory, topology.StreamOutput, subject.Output(x.Tenant, x.Sandbox, x.ID), first.Seq, func(m directget.Message) error {
		c, err := transcript.Decode(m.Header, m.Data, m.Seq)
		if err != nil {
			return err
		}
		return l.chunk(&c)
	})
	if l.More = errors.Is(err, errEnough); l.More {
		err = nil
	}
	return l.Lines, err
}

// lines gathers Lines from chunks.
type lines struct {
	Lines
	// at is the offset behind what was read, rest what belongs to a line whose end was not. midway: what comes next begins in the middle of one.
	at     uint64
	rest   []byte
	midway bool
	most   int
}

func (l *lines) chunk(c *transcript.Chunk) error {
	l.Last = c.Number
	if c.Stream != transcript.Stdout || c.StdoutEnd <= l.at {
		return nil
	}
	data := c.Data
	if c.Offset < l.at {
		data = data[min(l.at-c.Offset, uint64(len(data))):]
	}
	if c.Offset > l.at || c.GapTo > 0 {
		l.Missing, l.midway, l.rest = true, true, nil
	}
	l.at, l.End = c.StdoutEnd, max(l.End, c.StdoutEnd)
	if l.midway {
		_, behind, ok := bytes.Cut(data, []byte{'\n'})
		if !ok {
			l.Next = l.at
			return nil
		}
		l.midway, data = false, behind
	}
	l.rest = append(l.rest, data...)
	if end := bytes.LastIndexByte(l.rest, '\n') + 1; end > 0 {
		l.Data = append(l.Data, l.rest[:end]...)
		l.rest = l.rest[end:]
	} else if len(l.rest) >= l.most { // no line of ours is that long
		l.Missing, l.midway, l.rest = true, true, nil
	}
	l.Next = l.at - uint64(len(l.rest))
	if len(l.Data) >= l.most {
		return errEnough
	}
	return nil
}
