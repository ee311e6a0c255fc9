package sandboxapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// line is one of a sandbox's logs, at its place in the log.
type line struct {
	seq  uint64
	text string
}

// told gives the last lines of a sandbox's logs, at most n.
func (c *call) told(id string, n int) ([]string, error) {
	h, err := c.use.History(c.ctx, c.p, id)
	if err != nil {
		return nil, err
	}
	s, err := sandbox.Show(h)
	if err != nil {
		return nil, err
	}
	last := tail{most: n}
	for _, e := range h.Events {
		last.add(e)
	}
	err = c.use.Doings(c.ctx, c.p, s, func(m directget.Message) error {
		if e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data); err == nil {
			last.add(e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return last.lines(), nil
}

// tail keeps the last lines by their place in the log.
type tail struct {
	most int
	kept []line
}

func (t *tail) add(e envelope.Recorded) {
	words := words(e)
	if words == "" {
		return
	}
	t.kept = append(t.kept, line{e.Seq, e.Time.UTC().Format(time.RFC3339) + " " + words})
	if len(t.kept) > 2*t.most+1 {
		t.cut()
	}
}

func (t *tail) cut() {
	slices.SortFunc(t.kept, func(a, b line) int { return cmp.Compare(a.seq, b.seq) })
	t.kept = t.kept[max(len(t.kept)-t.most, 0):]
}

func (t *tail) lines() []string {
	t.cut()
	all := make([]string, 0, len(t.kept))
	for _, l := range t.kept {
		all = append(all, l.text)
	}
	return all
}

// words say what an event is; empty for one that nobody looks for here.
func words(e envelope.Recorded) string {
	switch b := e.Body.(type) {
	case *eventsv1.SandboxRequested:
		return "requested by " + clean(e.Actor) + ", image " + clean(b.GetImage()) + ", worker " + b.GetPlacement().GetWorker()
	case *eventsv1.SandboxScheduled:
		return "placed on worker " + b.GetPlacement().GetWorker()
	case *eventsv1.SandboxStarting:
		return strings.TrimSpace(fmt.Sprintf("starting, attempt %d %s", b.GetAttempt(), clean(b.GetMessage())))
	case *eventsv1.SandboxReady:
		return "ready"
	case *eventsv1.SandboxFailed:
		return "failed: " + clean(orElse(b.GetMessage(), b.GetReason()))
	case *eventsv1.SandboxStopping:
		return "stopping"
	case *eventsv1.SandboxStopped:
		return strings.TrimSpace("stopped " + clean(b.GetMessage()))
	case *eventsv1.SandboxExtended:
		return "may live until " + b.GetExpiresAt().AsTime().UTC().Format(time.RFC3339) + ", said " + clean(e.Actor)
	case *eventsv1.SandboxLabelled:
		return fmt.Sprintf("has %d labels now, said %s", len(b.GetLabels()), clean(e.Actor))
	case *eventsv1.SandboxEgressSet:
		return fmt.Sprintf("egress has %d rules now, said %s", len(b.GetEgress().GetAllow()), clean(e.Actor))
	case *eventsv1.SandboxSnapshotting:
		return "snapshot " + clean(b.GetImage()) + " begun, said " + clean(e.Actor)
	case *eventsv1.SandboxSnapshotted:
		return fmt.Sprintf("snapshot %s made: %d bytes in %d entries, %s", clean(b.GetImage()), b.GetBytes(), b.GetFiles(), clean(b.GetDigest()))
	case *eventsv1.SandboxSnapshotFailed:
		return "snapshot failed: " + clean(orElse(b.GetMessage(), b.GetReason()))
	case *eventsv1.SandboxDestroying:
		return "being deleted: " + b.GetReason()
	case *eventsv1.SandboxDestroyed:
		return "deleted"
	case *eventsv1.ExecStarted:
		return "exec " + b.GetExecId() + " started: " + command(b.GetSpec())
	case *eventsv1.ExecCompleted:
		_, id, _ := strings.Cut(e.Subject, ".exec.")
		_, id, _ = strings.Cut(id, ".")
		return fmt.Sprintf("exec %s ended: %s, exit code %d, %d bytes of stdout, %d of stderr", id, b.GetReason(), b.GetExitCode(),
			b.GetStdout().GetBytes(), b.GetStderr().GetBytes())
	case *eventsv1.ExecLost:
		return "exec lost: " + clean(orElse(b.GetMessage(), b.GetReason()))
	}
	return ""
}

func command(s *eventsv1.ExecSpec) string {
	return clean(strings.Join(append([]string{s.GetCommand()}, s.GetArgs()...), " "))
}

// clean makes one line of what others have written, at most maxWords of it.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > maxWords {
		s = strings.ToValidUTF8(s[:maxWords], "") + "…"
	}
	return s
}
