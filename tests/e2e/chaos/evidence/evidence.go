// Package evidence holds what a run left behind: the log, the recorded output, the buckets, the hosts, the rows of usage, the
// files that the programs wrote. It is plain data that can be saved and judged again, and a collector for each source.
package evidence

import (
	"time"

	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Evidence is what was collected of one run. What was not collected is nil and is not judged; what was collected and is empty
// is an empty, non-nil slice or map.
type Evidence struct {
	// Taken is when the log was read.
	Taken time.Time `json:"taken"`
	// Events are all of stream EVT, in order.
	Events []Event `json:"-"`
	// Transcripts are all of stream OUT, by exec.
	Transcripts []Transcript `json:"-"`
	// Buckets by name, each with its present entries by key.
	Buckets map[string]map[string]Value `json:"-"`
	// Pending are the commands that wait in CMD, Dead the letters in DLQ; without what they hold.
	Pending []Message `json:"pending"`
	// Consumers are those of CMD, as its leader knows them.
	Consumers []Consumer `json:"consumers"`
	Dead      []Message  `json:"dead"`
	Hosts     []Host     `json:"-"`
	// Execs and Sandboxes are the rows of agents.usage_events and agents.sandbox_usage.
	Execs     []Row `json:"-"`
	Sandboxes []Row `json:"-"`
	// Hours are quantities as they were added up; nil where none were read.
	Hours     *Hours    `json:"-"`
	Witnesses []Witness `json:"-"`
	// Appends are histories of appends with an expected sequence, see libs/eventlog/linear.
	Appends []AppendHistory `json:"-"`
	Samples []Sample        `json:"-"`
	// Faults that were made on purpose, as far as they explain how an exec ended.
	Faults []Fault `json:"faults,omitempty"`
	// Settled is how the collector waited for log and hosts to agree; nil where it did not.
	Settled *Settling `json:"settled"`
	// Limits that were in force.
	Limits Limits `json:"limits"`
}

// Event is a message of stream EVT as it stands there.
type Event struct {
	Seq     uint64              `json:"seq"`
	Subject string              `json:"subject"`
	Header  map[string][]string `json:"header"`
	Data    []byte              `json:"data"`
	// Stored is when the server took it.
	Stored time.Time `json:"stored"`
}

// Hours are the rows of agents.usage_hourly. Mark says up to where they are complete: stream_seq, and the log's clock there (at, Unix
// milliseconds).
type Hours struct {
	Mark Row   `json:"mark"`
	Rows []Row `json:"rows"`
}

// Transcript is the recorded output of an exec. A chunk that was stored twice is there twice.
type Transcript struct {
	Tenant  string          `json:"tenant"`
	Sandbox string          `json:"sandbox"`
	Exec    string          `json:"exec"`
	Chunks  []journal.Piece `json:"chunks"`
	// Stdout and Stderr are of the bytes that are stored, in the order of the chunks' numbers, each number once.
	Stdout, Stderr journal.Digest
}

// Value is an entry of a bucket.
type Value struct {
	Revision uint64    `json:"revision"`
	Created  time.Time `json:"created"`
	Data     []byte    `json:"data"`
}

// Message is one that stands in CMD or DLQ.
type Message struct {
	Seq     uint64              `json:"seq"`
	Subject string              `json:"subject"`
	Header  map[string][]string `json:"header,omitempty"`
	Stored  time.Time           `json:"stored"`
}

// Consumer is a durable consumer and how far it has come.
type Consumer struct {
	Name string `json:"name"`
	// Filters are the subjects of its messages.
	Filters []string `json:"filters"`
	// Acknowledged is the sequence up to which every message of its own is done with.
	Acknowledged uint64 `json:"acknowledged"`
}

// Host is what was found on a worker's host that carries a sandbox's name or lies in the worker's state directory.
type Host struct {
	Worker   string     `json:"worker"`
	StateDir string     `json:"state_dir"`
	Taken    time.Time  `json:"taken"`
	Found    []Resource `json:"found"`
}

// Kind of a resource.
type Kind string

// Kinds.
const (
	Process   Kind = "process"
	Mount     Kind = "mount"
	Loop      Kind = "loop"
	Cgroup    Kind = "cgroup"
	Netns     Kind = "netns"
	Socket    Kind = "socket"
	Directory Kind = "directory"
	File      Kind = "file"
	// Workspace is the image or directory of a workspace: kept until its delete-after.
	Workspace Kind = "workspace"
	// Kept is what outlives the processes of a sandbox that is stopped; Detail is KeptRoot once its root lies there.
	Kept Kind = "kept"
)

// KeptRoot is the Detail of a Kept that holds the root of a sandbox.
const KeptRoot = "root"

// Roles of processes.
const (
	RoleKeeper = "keeper"
	RoleSentry = "sentry"
	// RoleGuest is any other process in a sandbox's cgroup or below its keeper.
	RoleGuest = "guest"
	// RoleService is one of Sandtrail's services, or what it started for itself.
	RoleService = "service"
)

// Resource is one thing on a host.
type Resource struct {
	Kind Kind `json:"kind"`
	// Name is its path, device, or the process's command line.
	Name string `json:"name"`
	// Sandbox that it belongs to by its name; empty where none can be told.
	Sandbox string `json:"sandbox,omitempty"`
	// PID, Role and Zombie of a process; PID also of the one that holds a mount or namespace.
	PID    int    `json:"pid,omitempty"`
	Role   string `json:"role,omitempty"`
	Zombie bool   `json:"zombie,omitempty"`
	// Detail is for people.
	Detail string `json:"detail,omitempty"`
}

// Row is a row of a view of usage, its columns by name as ClickHouse gives them in JSON, 64-bit numbers as numbers.
type Row map[string]any

// Witness is the witness file of one sandbox: how often each token stands in it.
type Witness struct {
	Sandbox string         `json:"sandbox"`
	Starts  map[string]int `json:"starts"`
}

// AppendHistory is one history of appends.
type AppendHistory struct {
	// Log is what it was made on: R1, R3.
	Log string `json:"log"`
	// Calls are judged together.
	Calls []linear.Call `json:"calls"`
}

// Sample is what one worker's host held at a moment.
type Sample struct {
	At     time.Time `json:"at"`
	Worker string    `json:"worker"`
	// Sentries that ran, by sandbox.
	Sandboxes []string `json:"sandboxes"`
}

// FullWorkspace is the kind of a fault that fills the disk below the workspaces. They are sparse: what a program has written
// without asking for it to be on disk may be lost then, its line in the witness file too.
const FullWorkspace = "full-workspace"

// Fault is one that was made on purpose.
type Fault struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"`
	// Sandbox that it met; empty where it met a service.
	Sandbox string `json:"sandbox,omitempty"`
	// Signal that programs of the sandbox were sent; 0 where they were sent none.
	Signal int32 `json:"signal,omitempty"`
}

// Settling is a wait until log and hosts agreed.
type Settling struct {
	// Took from the first look to the one at which they agreed, or to the end of the wait.
	Took time.Duration `json:"took"`
	// Agreed is false where the wait ended first.
	Agreed bool `json:"agreed"`
	// Open says what did not agree at the last look.
	Open []string `json:"open,omitempty"`
}

// Limits in force; 0 and absent: none.
type Limits struct {
	// Sandboxes at once by worker.
	Sandboxes map[string]int `json:"sandboxes,omitempty"`
	// PerTenant is sandboxes at once of a tenant.
	PerTenant int `json:"per_tenant,omitempty"`
	// CPUMillis and MemoryBytes of a worker's host: the most that one sandbox may have.
	CPUMillis   map[string]uint64 `json:"cpu_millis,omitempty"`
	MemoryBytes map[string]uint64 `json:"memory_bytes,omitempty"`
	// Settle is how long log and hosts may disagree: 30 s.
	Settle time.Duration `json:"settle,omitempty"`
}
