package journal

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// FileName of a journal in its directory.
const FileName = "journal.jsonl"

// Label is the label of CreateSandboxRequest that holds the idempotency key of a create, so that the log tells which sandbox a
// create made whose answer was lost.
const Label = "chaos-key"

// headerExec is where an exec's id stands in the header of a stream.
const headerExec = "sandtrail-exec-id"

// Journal takes what clients do and see. Any number may use it at the same time.
type Journal struct {
	seed uint64

	mu    sync.Mutex
	calls []*Open
	file  *os.File
	err   error
}

// line is one line of a journal's file. A call is there when it begins and, with all that is known, when it ends.
type line struct {
	Seed  *uint64 `json:"seed,omitempty"`
	Begin *Call   `json:"begin,omitempty"`
	End   *Call   `json:"end,omitempty"`
}

// New keeps a journal in memory only.
func New(seed uint64) *Journal { return &Journal{seed: seed} }

// Start keeps a journal in memory and in dir/journal.jsonl, which must not exist.
func Start(dir string, seed uint64) (*Journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, FileName), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start a journal: %w", err)
	}
	j := &Journal{seed: seed, file: f}
	j.write(line{Seed: &seed})
	return j, nil
}

// write adds a line at once: a run that is killed has written all that happened before. It needs j.mu, or nobody else to know j.
func (j *Journal) write(l line) {
	if j.file == nil || j.err != nil {
		return
	}
	data, err := json.Marshal(l)
	if err == nil {
		_, err = j.file.Write(append(data, '\n'))
	}
	j.err = err
}

// Begin records that a client calls. Number and, where it is zero, Began are filled in.
func (j *Journal) Begin(c Call) *Open {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.Number = uint64(len(j.calls) + 1)
	if c.Began.IsZero() {
		c.Began = time.Now().UTC()
	}
	o := &Open{journal: j, call: c}
	j.calls = append(j.calls, o)
	j.write(line{Begin: &c})
	return o
}

// History is all that was recorded so far.
func (j *Journal) History() History {
	j.mu.Lock()
	calls := slices.Clone(j.calls)
	j.mu.Unlock()
	h := History{Seed: j.seed}
	for _, o := range calls {
		h.Calls = append(h.Calls, o.Call())
	}
	return h
}

// Close ends the file. The error is the first one that writing it has met.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return j.err
	}
	err := errors.Join(j.err, j.file.Close())
	j.file = nil
	return err
}

// Open is a call under way. Its methods may be used by one client at a time.
type Open struct {
	journal *Journal
	mu      sync.Mutex
	call    Call
}

// Call is what is known of it.
func (o *Open) Call() Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.call
	c.Seen = slices.Clone(c.Seen)
	return c
}

// Sandbox records the id that a create was answered with.
func (o *Open) Sandbox(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.call.Sandbox = id
}

// Header records the exec's id from the header of a stream. The id alone acknowledges nothing: a refused exec has one too.
func (o *Open) Header(h metadata.MD) {
	if id := h.Get(headerExec); len(id) > 0 {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.call.Exec = id[0]
	}
}

// Event records one event of an exec's stream. The digest of its bytes is taken before it returns. A heartbeat says nothing: it also
// comes while the exec is on its way to its worker, which may refuse it.
func (o *Open) Event(e *computev1.ExecEvent) {
	if e.GetHeartbeat() != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.call.Answer = Acknowledged
	switch v := e.GetEvent().(type) {
	case *computev1.ExecEvent_Stdout:
		o.piece(e, "stdout", v.Stdout.GetData())
	case *computev1.ExecEvent_Stderr:
		o.piece(e, "stderr", v.Stderr.GetData())
	case *computev1.ExecEvent_Gap:
		o.call.Seen = append(o.call.Seen, Piece{
			Number: e.GetChunk(), Stream: v.Gap.GetStream(), From: v.Gap.GetFrom(), To: v.Gap.GetTo(), Gap: true,
		})
	case *computev1.ExecEvent_Completed:
		o.call.End = endOf(v.Completed)
	}
}

func (o *Open) piece(e *computev1.ExecEvent, stream string, data []byte) {
	sum := sha256.Sum256(data)
	o.call.Seen = append(o.call.Seen, Piece{
		Number: e.GetChunk(), Stream: stream, From: e.GetOffset(), To: e.GetOffset() + uint64(len(data)), SHA256: hex.EncodeToString(sum[:]),
	})
}

func endOf(c *computev1.ExecCompleted) *End {
	digest := func(d *computev1.OutputDigest) Digest {
		return Digest{Bytes: d.GetBytes(), Dropped: d.GetDroppedBytes(), SHA256: hex.EncodeToString(d.GetSha256())}
	}
	return &End{
		ExitCode: c.GetExitCode(), Signal: c.GetSignal(), Reason: c.GetReason(), UsageEventID: c.GetUsageEventId(),
		Stdout: digest(c.GetStdout()), Stderr: digest(c.GetStderr()),
	}
}

// Done records how the call ended, and returns it. A call that was acknowledged before stays so, whatever broke its stream.
func (o *Open) Done(err error) Call {
	o.mu.Lock()
	o.call.Ended = time.Now().UTC()
	switch code := status.Code(err); {
	case err == nil:
		o.call.Answer = Acknowledged
	case code == codes.DataLoss && (o.call.Op == Exec || o.call.Op == Attach):
		o.call.Answer, o.call.End = Acknowledged, &End{Lost: true}
	case o.call.Answer == "":
		o.call.Answer = answerOf(code)
	}
	if err != nil {
		f := fault.FromStatus(err)
		o.call.Code, o.call.Reason, o.call.Message = status.Code(err).String(), string(f.Reason), f.Message
	}
	c := o.call
	c.Seen = slices.Clone(c.Seen)
	o.mu.Unlock()

	o.journal.mu.Lock()
	defer o.journal.mu.Unlock()
	o.journal.write(line{End: &c})
	return c
}

// refusals are the codes with which a service says that nothing came of a call and nothing will.
var refusals = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
	codes.FailedPrecondition, codes.ResourceExhausted, codes.OutOfRange, codes.Unimplemented,
}

func answerOf(c codes.Code) Answer {
	if slices.Contains(refusals, c) {
		return Refused
	}
	return Unknown
}

// Read reads the journal of a directory. A last line that was not written whole is left out.
func Read(dir string) (History, error) {
	f, err := os.Open(filepath.Join(dir, FileName))
	if err != nil {
		return History{}, fmt.Errorf("read a journal: %w", err)
	}
	defer f.Close()
	var h History
	lines := bufio.NewReader(f)
	for {
		// Without a bound: a call that saw much output is one long line.
		data, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if err != nil {
			return h, fmt.Errorf("read a journal: %w", err)
		}
		var l line
		if err := json.Unmarshal(data, &l); err != nil {
			return h, fmt.Errorf("read a journal: %w", err)
		}
		switch {
		case l.Seed != nil:
			h.Seed = *l.Seed
		case l.Begin != nil:
			h.Calls = append(h.Calls, *l.Begin)
		case l.End != nil && l.End.Number >= 1 && l.End.Number <= uint64(len(h.Calls)):
			h.Calls[l.End.Number-1] = *l.End
		default:
			return h, fmt.Errorf("read a journal: %q is none of its lines", data)
		}
	}
}
