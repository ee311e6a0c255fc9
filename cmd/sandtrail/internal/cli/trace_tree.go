package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Kinds of nodes.
const (
	nodeRequest = "request"
	nodeCommand = "command"
	nodeEvent   = "event"
	nodeRuntime = "runtime"
	nodeOutput  = "output"
	nodeRow     = "usage_row"
)

// node is one thing of a trace and what it led to.
type node struct {
	Kind string `json:"kind"`
	// ID is a correlation id, command id, event id or the id of a usage row; empty of what has none.
	ID       string     `json:"id,omitempty"`
	Sequence uint64     `json:"sequence,omitempty"`
	Subject  string     `json:"subject,omitempty"`
	Type     string     `json:"type,omitempty"`
	Actor    string     `json:"actor,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	Text     string     `json:"text,omitempty"`
	Children []*node    `json:"children,omitempty"`
}

func (n *node) add(child *node) *node {
	n.Children = append(n.Children, child)
	return child
}

// trees makes the tree of each request of events, which are in the order of the log. A command stands below the event that it came
// from where that is among them, otherwise below the request.
func trees(all []happening, rows map[uint64][]*computev1.UsageRow) []*node {
	var roots []*node
	requests, commands, events := map[string]*node{}, map[string]*node{}, map[string]*node{}
	started := map[string]*node{}
	for _, h := range all {
		root, ok := requests[h.request()]
		if !ok {
			root = &node{Kind: nodeRequest, ID: h.request(), Actor: h.Actor}
			requests[h.request()] = root
			roots = append(roots, root)
		}
		above := root
		if from, ok := events[h.Cause]; ok {
			above = from
		} else if h.Cause != "" {
			if above, ok = commands[h.Cause]; !ok {
				from := root
				// The end of an exec is recorded under a command that is derived from the exec's id.
				if begin := started[h.agg.ID]; begin != nil && h.Cause == sandbox.EndCommand(h.agg.ID) {
					from = begin
				}
				above = from.add(&node{Kind: nodeCommand, ID: h.Cause, Actor: h.Actor})
				commands[h.Cause] = above
			}
		}
		at := h.Time
		n := above.add(&node{
			Kind: nodeEvent, ID: h.ID, Sequence: h.Seq, Subject: h.Subject, Type: shortType(h.Type), Actor: h.Actor, Time: &at, Text: render.Happened(h.Body),
		})
		events[h.ID] = n
		if h.agg.Kind == subject.KindExec && started[h.agg.ID] == nil {
			started[h.agg.ID] = n
		}
		n.details(h)
		for _, r := range rows[h.Seq] {
			if r.GetExecId() == h.agg.ID {
				n.add(rowNode(r))
			}
		}
	}
	return roots
}

func shortType(full string) string { return full[strings.LastIndexByte(full, '.')+1:] }

// details adds what an event says of things that are no events: where a sandbox runs, what an exec wrote.
func (n *node) details(h happening) {
	switch b := h.Body.(type) {
	case *eventsv1.SandboxReady:
		text := fmt.Sprintf("%s on worker %s", b.GetRuntimeId(), b.GetWorker())
		if to := b.GetEndpoint(); to != nil {
			text = fmt.Sprintf("pod %s (%s) on worker %s", to.GetRuntime(), to.GetUid(), b.GetWorker())
		}
		n.add(&node{Kind: nodeRuntime, ID: b.GetRuntimeId(), Text: render.Clean(text)})
	case *eventsv1.ExecCompleted:
		n.output(b.GetStdout().GetBytes(), b.GetStderr().GetBytes(), b.GetLastChunk())
	case *eventsv1.ExecLost:
		n.output(b.GetStdoutBytes(), b.GetStderrBytes(), b.GetLastChunk())
	}
}

func (n *node) output(stdout, stderr, chunks uint64) {
	if chunks > 0 {
		n.add(&node{Kind: nodeOutput, Text: fmt.Sprintf("%s on stdout, %s on stderr, in %d chunks", render.Bytes(stdout), render.Bytes(stderr), chunks)})
	}
}

func rowNode(r *computev1.UsageRow) *node {
	at := r.GetOccurredAt().AsTime()
	return &node{
		Kind: nodeRow, ID: r.GetId(), Sequence: r.GetStreamSequence(), Type: r.GetEventType(), Time: &at,
		Text: fmt.Sprintf("%d ms of wall time, %d ms of CPU", r.GetWallTimeMs(), r.GetUsage().GetCpuMs()),
	}
}

// write writes the tree, two spaces a level.
func (n *node) write(w io.Writer, indent string) error {
	line := indent + n.Kind
	switch n.Kind {
	case nodeEvent:
		line = fmt.Sprintf("%s%d %s  %s", indent, n.Sequence, n.Type, n.Text)
	case nodeRequest, nodeCommand:
		line += " " + n.ID + " by " + n.Actor
	case nodeRow:
		line += " " + n.ID + "  " + n.Text
	default:
		line += " " + n.Text
	}
	if n.Time != nil {
		line = fmt.Sprintf("%-*s  %s", 72, line, n.Time.UTC().Format(time.RFC3339Nano))
	}
	if _, err := fmt.Fprintln(w, render.Clean(line)); err != nil {
		return err
	}
	for _, c := range n.Children {
		if err := c.write(w, indent+"  "); err != nil {
			return err
		}
	}
	return nil
}
