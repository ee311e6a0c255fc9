package check

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// sameViews: the log replays, and the views of sandboxes, the receipts of execs and the rows of usage are what comes of it.
func sameViews(w *world) []finding {
	var f findings
	f = append(f, w.unread...)
	for _, b := range sorted(w.boxes) {
		f = append(f, b.refused...)
	}
	for _, x := range sorted(w.runs) {
		f = append(f, x.refused...)
	}
	for _, d := range sorted(w.disks) {
		f = append(f, d.refused...)
	}
	if w.Buckets != nil {
		want := map[string]proto.Message{}
		for _, b := range w.boxes {
			view := b.state.View()
			if d := w.disks[b.agg.ID]; d != nil && d.state.State == sandbox.Deleted {
				view.WorkspaceDeletedAt = timestamppb.New(d.state.DeletedAt)
			}
			want[b.agg.Tenant+"."+b.agg.ID] = view
		}
		f.compare("view", w.Buckets[topology.BucketSandbox], want, func() proto.Message { return &commandsv1.SandboxView{} })
		want = map[string]proto.Message{}
		for _, x := range w.runs {
			if w.Taken.Sub(last(x.events).Time) < topology.ReceiptTTL {
				want[x.agg.Tenant+"."+x.agg.Sandbox+"."+x.agg.ID] = x.state.View()
			}
		}
		f.compare("receipt", w.Buckets[topology.BucketExec], want, func() proto.Message { return &commandsv1.ExecView{} })
	}
	f = append(f, w.sameRows()...)
	f = append(f, w.sameHours()...)
	return f
}

// compare judges the entries of a bucket, field by field.
func (f *findings) compare(what string, have map[string]evidence.Value, want map[string]proto.Message, empty func() proto.Message) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		v, ok := have[key]
		if !ok {
			f.add(what+" "+key, "it is missing")
			continue
		}
		m := empty()
		if err := proto.Unmarshal(v.Data, m); err != nil {
			f.add(what+" "+key, "it cannot be read: %v", err)
			continue
		}
		if d := differing(m, want[key]); len(d) > 0 {
			f.add(what+" "+key, "it differs from the log in %s", strings.Join(d, ", "))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[key]; !ok {
			f.add(what+" "+key, "nothing in the log leads to it")
		}
	}
}

// differing are the names of the fields in which two messages of one type differ, those that neither knows included.
func differing(a, b proto.Message) []string {
	var names []string
	x, y := a.ProtoReflect(), b.ProtoReflect()
	fields := x.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if x.Has(field) != y.Has(field) || !x.Get(field).Equal(y.Get(field)) {
			names = append(names, string(field.Name()))
		}
	}
	if !equalUnknown(x.GetUnknown(), y.GetUnknown()) {
		names = append(names, "unknown fields")
	}
	return names
}

func equalUnknown(a, b protoreflect.RawFields) bool { return string(a) == string(b) }
