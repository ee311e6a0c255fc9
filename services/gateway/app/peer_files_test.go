package app_test

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// version is that of a file; the caller holds the lock.
func (p *peer) version(path string) string {
	sum := sha256.Sum256(p.files[path])
	return hex.EncodeToString(sum[:])
}

func (p *peer) moreFiles(c *commandsv1.FileCall) (*commandsv1.FileReply, error) {
	switch call := c.GetCall().(type) {
	case *commandsv1.FileCall_Stat:
		data, ok := p.files[call.Stat.GetPath()]
		if !ok {
			return nil, noFile()
		}
		r := &commandsv1.FileReply{TotalSize: int64(len(data)), Version: p.version(call.Stat.GetPath()), Unsettled: p.unsettled}
		if call.Stat.GetDigest() {
			sum := sha256.Sum256(data)
			r.Sha256 = sum[:]
		}
		return r, nil
	case *commandsv1.FileCall_Delete:
		if _, ok := p.files[call.Delete.GetPath()]; !ok {
			return nil, noFile()
		}
		delete(p.files, call.Delete.GetPath())
		p.appends++
		return &commandsv1.FileReply{}, nil
	case *commandsv1.FileCall_Resize:
		x := p.running[call.Resize.GetExecId()]
		if x == nil {
			return nil, fault.New(fault.NotFound, fault.ReasonExecNotFound, "there is no such exec")
		}
		x.do(ids.New(), sandbox.ResizeExec{Size: call.Resize.GetSize()})
		return &commandsv1.FileReply{}, nil
	case *commandsv1.FileCall_Signal:
		x := p.running[call.Signal.GetExecId()]
		if x == nil {
			return nil, fault.New(fault.NotFound, fault.ReasonExecNotFound, "there is no such exec")
		}
		if p.onSignal != nil {
			p.onSignal(x, call.Signal.GetSignal())
		}
		return &commandsv1.FileReply{}, nil
	default:
		return p.stdin(c.GetStdin())
	}
}

func noFile() error {
	return fault.New(fault.NotFound, fault.ReasonPathNotFound, "no such file or directory")
}

// stdin keeps the rules of the toolbox, and takes 3 bytes at a time unless the test has it take more.
func (p *peer) stdin(c *commandsv1.StdinCall) (*commandsv1.FileReply, error) {
	id, have := c.GetExecId(), uint64(len(p.inputs[c.GetExecId()]))
	switch {
	case p.closed[id]:
		return nil, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "standard input of the command is closed")
	case c.GetOffset() > have:
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "bytes before the offset are missing")
	}
	fresh := c.GetData()[min(have-c.GetOffset(), uint64(len(c.GetData()))):]
	take := min(max(3, p.typed), len(fresh))
	p.inputs[id] = append(p.inputs[id], fresh[:take]...)
	p.closed[id] = c.GetEof() && take == len(fresh)
	return &commandsv1.FileReply{StdinOffset: uint64(len(p.inputs[id]))}, nil
}

// blackHole takes uploads of any size and keeps nothing of them, and has one file of a size, of zeros.
func (p *peer) blackHole(size int64) {
	p.set(func() {
		p.answers = func(c *commandsv1.FileCall) *commandsv1.FileReply {
			switch call := c.GetCall().(type) {
			case *commandsv1.FileCall_Stat:
				return &commandsv1.FileReply{TotalSize: size, Version: "1"}
			case *commandsv1.FileCall_Read:
				n := min(call.Read.GetMaxBytes(), size-call.Read.GetOffset())
				return &commandsv1.FileReply{Data: make([]byte, n), TotalSize: size, Version: "1"}
			default:
				return &commandsv1.FileReply{Size: size, Sha256: make([]byte, sha256.Size)}
			}
		}
	})
}

// list has one file, or those that there are where a test wants them.
func (p *peer) list(c *commandsv1.ListCall) *commandsv1.FileReply {
	names := []string{"f"}
	if p.listed {
		names = slices.Sorted(maps.Keys(p.files))
	}
	r := &commandsv1.FileReply{}
	for _, name := range names {
		switch {
		case strings.Compare(name, string(c.GetAfter())) <= 0:
		case len(r.Entries) == int(c.GetMaxEntries()):
			r.Truncated, r.Next = true, []byte(r.Entries[len(r.Entries)-1].GetPath())
			return r
		default:
			r.Entries = append(r.Entries, &commandsv1.FileInfo{Path: name, Size: uint64(len(p.files[name]))})
		}
	}
	return r
}
