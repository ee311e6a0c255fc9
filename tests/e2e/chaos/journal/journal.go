// Package journal holds what the clients of a run did and saw: each call with its times and its answer, each piece of output with
// its place and digest, and what each program was built to do. It is written as JSON lines while the run goes on, so that a run
// can be judged again from its files, also when whoever made it was killed.
package journal

import (
	"time"
)

// Op is what a call asks for.
type Op string

// Ops.
const (
	Create  Op = "create"
	Exec    Op = "exec"
	Attach  Op = "attach"
	Cancel  Op = "cancel"
	Destroy Op = "destroy"
	Stop    Op = "stop"
	// Restart starts what is stopped.
	Restart Op = "start"
)

// Answer is what a client knows of a call once it is over.
type Answer string

// Answers. A call without one was never answered: its client was killed, or the run ended first.
const (
	// Acknowledged: the service said yes. For an exec: an event of its stream has come, or it was said to be lost.
	Acknowledged Answer = "acknowledged"
	// Refused: the service said no, and nothing must come of it.
	Refused Answer = "refused"
	// Unknown: it may have happened or not, then or later.
	Unknown Answer = "unknown"
)

// Call is one call of one client. A repeat with the same key is a call of its own.
type Call struct {
	// Number counts from 1 in one journal.
	Number uint64 `json:"number"`
	Client string `json:"client"`
	Op     Op     `json:"op"`
	Tenant string `json:"tenant"`
	// Key is the idempotency key; empty without one.
	Key string `json:"key,omitempty"`
	// Sandbox and Exec are what it is about; those that the answer names are filled in then.
	Sandbox string `json:"sandbox,omitempty"`
	Exec    string `json:"exec,omitempty"`
	// Program is what an exec is built to do. An attach has none: it is found by the exec.
	Program *Program  `json:"program,omitempty"`
	Began   time.Time `json:"began"`

	Ended  time.Time `json:"ended,omitzero"`
	Answer Answer    `json:"answer,omitempty"`
	// Code, Reason and Message are those of the error; Code is the gRPC code's name. Empty without one.
	Code    string `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// After is the chunk that an attach asked to go on behind.
	After uint64 `json:"after,omitempty"`
	// Seen is the output that came on this call, in the order in which it came.
	Seen []Piece `json:"seen,omitempty"`
	// End is the exec's end as this call was told; nil where it was not.
	End *End `json:"end,omitempty"`
}

// Piece is a chunk of output: its place and digest, not its bytes.
type Piece struct {
	// Number of the chunk, from 1 over both streams.
	Number uint64 `json:"n"`
	// Stream is stdout or stderr.
	Stream string `json:"s"`
	// From and To are offsets in the stream: the first byte and the one behind the last.
	From uint64 `json:"f"`
	To   uint64 `json:"t"`
	// Gap: these bytes were dropped, and it was told so.
	Gap bool `json:"gap,omitempty"`
	// SHA256 of the bytes, in hex; empty for a gap.
	SHA256 string `json:"h,omitempty"`
}

// End is the end of an exec as a client was told.
type End struct {
	// Lost: its end is not known. All below is empty then.
	Lost     bool  `json:"lost,omitempty"`
	ExitCode int32 `json:"exit_code"`
	Signal   int32 `json:"signal,omitempty"`
	// Reason as in the event ExecCompleted.
	Reason         string `json:"reason,omitempty"`
	UsageEventID   string `json:"usage_event_id,omitempty"`
	Stdout, Stderr Digest
}

// Digest is what an end says of a stream.
type Digest struct {
	Bytes   uint64 `json:"bytes,omitempty"`
	Dropped uint64 `json:"dropped,omitempty"`
	// SHA256 of the bytes that were kept, in hex; empty without output.
	SHA256 string `json:"sha256,omitempty"`
}

// History is a whole journal, in the order in which the calls began.
type History struct {
	// Seed of the run.
	Seed  uint64 `json:"seed"`
	Calls []Call `json:"calls"`
}
