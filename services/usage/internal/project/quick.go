package project

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// typeCompleted is the type of nearly all events that make a row.
var typeCompleted = string((&eventsv1.ExecCompleted{}).ProtoReflect().Descriptor().FullName())

// quick makes the row that Decode and Map would make of an ExecCompleted, and nothing but the row, which is a good part of what
// an event costs. false: there is something about the event that it does not know, and the row is not to be used.
func (w *words) quick(row *clickhouse.Row, m feed.Message, h envelope.Head, agg subject.Aggregate, o Owner) bool {
	if !w.meta(row, h, agg) {
		return false
	}
	row.Type, row.Outcome, row.Seq, row.Schema = clickhouse.ExecCommand, "completed", m.Seq, schemaVersion
	row.Session, row.Org = o.Session, o.Org
	return w.completed(row, m.Data)
}

// meta reads what is around the body.
func (w *words) meta(row *clickhouse.Row, h envelope.Head, agg subject.Aggregate) bool {
	if h.Tenant != "" && h.Tenant != agg.Tenant {
		return false
	}
	if _, err := strconv.Atoi(h.Schema); err != nil || !hexadecimal(h.Digest) {
		return false
	}
	at, err := time.Parse(time.RFC3339Nano, h.Time)
	if err != nil || at.Before(earliest) || at.After(latest) {
		return false
	}
	row.OccurredAt, row.Tenant = at.UTC(), w.of(agg.Tenant)
	var ok [3]bool
	row.EventID, ok[0] = id(h.ID)
	row.Sandbox, ok[1] = id(agg.Sandbox)
	row.Exec, ok[2] = id(agg.ID)
	return ok == [3]bool{true, true, true}
}

// completed reads the fields of an ExecCompleted.
func (w *words) completed(row *clickhouse.Row, data []byte) bool {
	var (
		code    int32
		dropped [2]uint64
	)
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return false
			}
			data = data[n:]
			switch number {
			case 1:
				code = int32(v) //nolint:gosec // as protobuf does
			case 2:
				row.Signal = int32(v) //nolint:gosec // as protobuf does
			case 3:
				row.WallMillis = v / 1000
			case 7:
			default:
				return false
			}
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(data)
			if n < 0 || !w.part(row, &dropped, number, v) {
				return false
			}
			data = data[n:]
		default:
			return false
		}
	}
	row.ExitCode = exitCode(code)
	row.OutputKept = row.StdoutBytes - min(row.StdoutBytes, dropped[0]) + row.StderrBytes - min(row.StderrBytes, dropped[1])
	// Without an id of its own it gets one from the event's, by the general way.
	return row.ID != (uuid.UUID{})
}

// part reads one text or message of an ExecCompleted. dropped is of standard output and error.
func (w *words) part(row *clickhouse.Row, dropped *[2]uint64, number protowire.Number, v []byte) bool {
	switch number {
	case 6:
		return usage(row, v)
	case 8:
		return output(&row.StdoutBytes, &dropped[0], v)
	case 9:
		return output(&row.StderrBytes, &dropped[1], v)
	}
	if !utf8.Valid(v) {
		return false
	}
	switch number {
	case 4:
		row.Reason = w.ofBytes(v)
	case 5:
	case 10:
		u, err := uuid.ParseBytes(v)
		row.ID = u
		return err == nil
	case 11:
		row.Session = w.ofBytes(v)
		return len(v) > 0
	case 12:
		row.Method = w.ofBytes(v)
	default:
		return false
	}
	return true
}

// usage reads the fields of a UsageMetrics.
func usage(row *clickhouse.Row, data []byte) bool {
	to := [...]*uint64{
		1: &row.CPUMillis, 2: &row.MemoryPeak, 3: &row.MemoryAvg, 4: &row.DiskRead, 5: &row.DiskWrite,
		6: &row.Egress, 7: &row.Ingress, 8: &row.GPUMillis, 9: &row.GPUMemory,
	}
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 || kind != protowire.VarintType || int(number) >= len(to) {
			return false
		}
		v, k := protowire.ConsumeVarint(data[n:])
		if k < 0 {
			return false
		}
		*to[number] = v
		data = data[n+k:]
	}
	return true
}

// output reads how many bytes an Output has, and how many of them were dropped.
func output(to, dropped *uint64, data []byte) bool {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		switch {
		case kind == protowire.VarintType && number <= 2:
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return false
			}
			data = data[n:]
			if number == 1 {
				*to = v
			} else {
				*dropped = v
			}
		case kind == protowire.BytesType && number == 3:
			_, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return false
			}
			data = data[n:]
		default:
			return false
		}
	}
	return true
}

// exitCodes are those that a program can have, so that a row needs no memory for its own.
var exitCodes = func() (all [256]int32) {
	for i := range all {
		all[i] = int32(i) //nolint:gosec // below 256
	}
	return all
}()

func exitCode(code int32) *int32 {
	if code >= 0 && int(code) < len(exitCodes) {
		return &exitCodes[code]
	}
	rare := code
	return &rare
}

// digits are those of hexadecimal numbers.
var digits = func() (all [256]bool) {
	for _, c := range []byte("0123456789abcdefABCDEF") {
		all[c] = true
	}
	return all
}()

func hexadecimal(s string) bool {
	for i := range len(s) {
		if !digits[s[i]] {
			return false
		}
	}
	return len(s)%2 == 0
}

func id(s string) (uuid.UUID, bool) {
	u, err := uuid.Parse(s)
	return u, err == nil
}

// wordsKept bounds the words that are remembered, and longWord their length in bytes.
const (
	wordsKept = 4096
	longWord  = 128
)

// words are texts that many rows have: each row would hold a copy of its own, for as long as its batch is under way. For one
// goroutine.
type words struct{ known map[string]string }

func newWords() *words { return &words{known: map[string]string{}} }

func (w *words) of(s string) string {
	if k, ok := w.known[s]; ok {
		return k
	}
	return w.learn(string([]byte(s)))
}

func (w *words) ofBytes(b []byte) string {
	if k, ok := w.known[string(b)]; ok {
		return k
	}
	return w.learn(string(b))
}

func (w *words) learn(s string) string {
	if len(s) > longWord {
		return s
	}
	if len(w.known) >= wordsKept {
		clear(w.known)
	}
	w.known[s] = s
	return s
}
