package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// maxArgs bounds how much of a command line an event shows, in bytes.
const maxArgs = 120

// EventType is the short name of an event's type: SandboxReady.
func EventType(e *computev1.WatchEventsResponse) string {
	return e.GetType()[strings.LastIndexByte(e.GetType(), '.')+1:]
}

// EventBody decodes an event; nil where its type is not known to this program.
func EventBody(e *computev1.WatchEventsResponse) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(e.GetType()))
	if err != nil {
		return nil
	}
	m := t.New().Interface()
	if proto.Unmarshal(e.GetBody(), m) != nil {
		return nil
	}
	return m
}

// Event is one line: time, sequence, type, the first digits of the ids, and what happened.
func Event(e *computev1.WatchEventsResponse) string {
	ids := short(e.GetSandboxId())
	if e.GetExecId() != "" {
		ids += "/" + short(e.GetExecId())
	}
	return Clean(fmt.Sprintf("%s  %7d  %-20s  %-17s  %s", Time(e.GetTime()), e.GetSequence(), EventType(e), ids, happened(EventBody(e))))
}

func short(id string) string {
	if len(id) < 8 {
		return id
	}
	return id[:8]
}

// Happened says in words what a body of an event tells; it is nil where its type is not known.
func Happened(body proto.Message) string { return Clean(happened(body)) }

// happened says it in words.
func happened(body proto.Message) string {
	switch b := body.(type) {
	case *eventsv1.SandboxRequested:
		return fmt.Sprintf("a sandbox from %s for worker %s", b.GetImage(), b.GetPlacement().GetWorker())
	case *eventsv1.SandboxScheduled:
		return "moved to worker " + b.GetPlacement().GetWorker()
	case *eventsv1.SandboxStarting:
		switch {
		case b.GetReason() != "":
			return fmt.Sprintf("start %d waits (%s): %s", b.GetAttempt(), b.GetReason(), b.GetMessage())
		case b.GetMessage() != "":
			return fmt.Sprintf("start %d goes on: %s", b.GetAttempt(), b.GetMessage())
		}
		return fmt.Sprintf("worker %s begins start %d", b.GetWorker(), b.GetAttempt())
	case *eventsv1.SandboxReady:
		return fmt.Sprintf("ready on worker %s as %s", b.GetWorker(), b.GetHostname())
	case *eventsv1.SandboxFailed:
		return fmt.Sprintf("failed (%s): %s", b.GetReason(), b.GetMessage())
	case *eventsv1.SandboxStopping:
		return "is being stopped"
	case *eventsv1.SandboxStopped:
		return "stopped after " + millis(b.GetUptimeMs())
	case *eventsv1.SandboxDestroying:
		return "its end was decided: " + b.GetReason()
	case *eventsv1.SandboxDestroyed:
		return fmt.Sprintf("gone, was up for %s; workspace kept until %s", millis(b.GetUptimeMs()), Time(b.GetWorkspaceDeleteAfter()))
	case *eventsv1.SandboxUsageSampled:
		return fmt.Sprintf("used %s of CPU, at most %s, in %s", millis(b.GetUsage().GetCpuMs()), Bytes(b.GetUsage().GetMemoryPeakBytes()), millis(b.GetUptimeMs()))
	case *eventsv1.SandboxExtended:
		return "may live until " + Time(b.GetExpiresAt())
	case *eventsv1.SandboxUsed:
		return "counts as in use until " + Time(b.GetUntil())
	case *eventsv1.SandboxEgressSet:
		return fmt.Sprintf("may connect to what %d rules allow", len(b.GetEgress().GetAllow()))
	case *eventsv1.EgressDecided:
		return connections(b)
	case *eventsv1.SandboxSnapshotting:
		return "snapshot " + b.GetImage() + " begun"
	case *eventsv1.SandboxSnapshotted:
		return fmt.Sprintf("snapshot %s made: %s in %d entries, %s", b.GetImage(), Bytes(b.GetBytes()), b.GetFiles(), b.GetDigest())
	case *eventsv1.SandboxSnapshotFailed:
		return "snapshot failed: " + b.GetMessage()
	case *eventsv1.SandboxLabelled:
		return labelled(b.GetLabels())
	case *eventsv1.WorkspaceReleased:
		return fmt.Sprintf("workspace of %s released, kept until %s", Bytes(b.GetSizeBytes()), Time(b.GetDeleteAfter()))
	case *eventsv1.WorkspaceDeleted:
		return "workspace removed: " + b.GetReason()
	case *eventsv1.LetterRedriven:
		return "dead letter redriven" + letter(b.GetLetter(), b.GetNote())
	case *eventsv1.LetterDropped:
		return "dead letter dropped" + letter(b.GetLetter(), b.GetNote())
	case *eventsv1.LogSigned:
		return fmt.Sprintf("the log was signed up to event %d", b.GetSize())
	case *eventsv1.WebhookCreated:
		return "events are sent to " + b.GetUrl()
	case *eventsv1.WebhookRotated:
		return "signed with another secret: " + b.GetSecretId()
	case *eventsv1.WebhookReplayRequested:
		return fmt.Sprintf("events from %d on are sent again", b.GetFromSequence())
	case *eventsv1.WebhookTestRequested:
		return "a test was asked for"
	case *eventsv1.WebhookTested:
		return tested(b)
	case *eventsv1.WebhookDisabled:
		return "disabled: " + b.GetReason()
	case *eventsv1.WebhookDeleted:
		return "deleted" + note(b.GetNote())
	case nil:
		return "(a type that this version does not know, or no event)"
	default:
		return execHappened(body)
	}
}

// maxPlaces bounds how many of the places that were asked for an event shows.
const maxPlaces = 3

func connections(b *eventsv1.EgressDecided) string {
	allowed, refused := b.GetMoreAllowed(), b.GetMoreRefused()
	var shown []string
	for _, d := range b.GetDecisions() {
		if d.GetAllowed() {
			allowed += d.GetCount()
			continue
		}
		refused += d.GetCount()
		if len(shown) < maxPlaces {
			shown = append(shown, fmt.Sprintf("%s:%d (%s)", d.GetHost(), d.GetPort(), d.GetReason()))
		}
	}
	text := fmt.Sprintf("%d connections allowed, %d refused", allowed, refused)
	if len(shown) > 0 {
		text += ": " + strings.Join(shown, ", ")
	}
	return text
}

func tested(b *eventsv1.WebhookTested) string {
	if b.GetDelivered() {
		return fmt.Sprintf("the test was delivered: %d after %s", b.GetStatus(), Duration(time.Duration(b.GetDurationUs())*time.Microsecond)) //nolint:gosec // seconds
	}
	return "the test was not delivered: " + b.GetMessage()
}

func labelled(labels map[string]string) string {
	if len(labels) == 0 {
		return "has no labels now"
	}
	var all []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, k+"="+labels[k])
	}
	return "labelled " + strings.Join(all, ", ")
}

func note(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

func letter(l *eventsv1.Letter, note string) string {
	s := fmt.Sprintf(": %s %d on %s, set aside by %s (%s)", l.GetStream(), l.GetSequence(), l.GetSubject(), l.GetConsumer(), l.GetErrorReason())
	if note != "" {
		s += "; " + note
	}
	return s
}

func execHappened(body proto.Message) string {
	switch b := body.(type) {
	case *eventsv1.ExecRequested:
		return "waits for its sandbox: " + commandLine(b.GetSpec())
	case *eventsv1.ExecStarted:
		return commandLine(b.GetSpec())
	case *eventsv1.ExecCompleted:
		s := fmt.Sprintf("exit code %d after %s, %s of output", b.GetExitCode(),
			Duration(time.Duration(b.GetWallTimeUs())*time.Microsecond), Bytes(b.GetStdout().GetBytes()+b.GetStderr().GetBytes())) //nolint:gosec // hours at most
		if b.GetReason() != "exited" {
			s += " (" + b.GetReason() + ")"
		}
		if met := limitNames(b.GetLimits()); met != "" {
			s += ", limits met: " + met
		}
		return s
	case *eventsv1.ExecLost:
		return fmt.Sprintf("its outcome cannot be known (%s): %s", b.GetReason(), b.GetMessage())
	case *eventsv1.ExecCancelRequested:
		return "its end was asked for: " + b.GetReason()
	case *eventsv1.ExecResized:
		return fmt.Sprintf("its terminal has %d columns and %d rows", b.GetSize().GetColumns(), b.GetSize().GetRows())
	default:
		return ""
	}
}

func commandLine(s *eventsv1.ExecSpec) string {
	line := strings.Join(append([]string{s.GetCommand()}, s.GetArgs()...), " ")
	if len(line) > maxArgs {
		line = strings.ToValidUTF8(line[:maxArgs], "") + " …"
	}
	return line
}

func millis(ms uint64) string {
	return Duration(time.Duration(ms) * time.Millisecond) //nolint:gosec // years at most
}
