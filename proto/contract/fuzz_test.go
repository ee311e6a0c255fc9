package contract

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	_ "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	_ "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// ours are all messages of the contracts, by name.
func ours() []protoreflect.MessageType {
	var all []protoreflect.MessageType
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		d := mt.Descriptor()
		p := string(d.ParentFile().Package())
		if !d.IsMapEntry() && (strings.HasPrefix(p, "sandtrail.") || strings.HasPrefix(p, "compute.") || strings.HasPrefix(p, "common.") || strings.HasPrefix(p, "toolbox.")) {
			all = append(all, mt)
		}
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MessageType) int {
		return strings.Compare(string(a.Descriptor().FullName()), string(b.Descriptor().FullName()))
	})
	return all
}

// FuzzBodies: bytes are refused as a message of the contracts, or they are one that is written and read again as the same.
func FuzzBodies(f *testing.F) {
	types := ours()
	if len(types) < 80 {
		f.Fatalf("only %d messages", len(types))
	}
	files, err := filepath.Glob("../corpus/v1/*.binpb")
	if err != nil || len(files) == 0 {
		f.Fatal("no corpus", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		// NAME.binpb, or NAME+FIELDS.binpb of a later version.
		stem, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".binpb"), "+")
		name := protoreflect.Name(stem)
		i := slices.IndexFunc(types, func(mt protoreflect.MessageType) bool {
			return mt.Descriptor().Name() == name && mt.Descriptor().ParentFile().Package() == "sandtrail.events.v1"
		})
		if i < 0 {
			f.Fatal("no type for", file)
		}
		f.Add(uint16(i), data)
	}
	for i := range types {
		f.Add(uint16(i), []byte{0x0a, 0x03, 'a', 'b', 'c'})
	}
	f.Fuzz(func(t *testing.T, which uint16, data []byte) {
		mt := types[int(which)%len(types)]
		m := mt.New().Interface()
		if proto.Unmarshal(data, m) != nil {
			return
		}
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatalf("%s: what was read cannot be written: %v", mt.Descriptor().FullName(), err)
		}
		twin := mt.New().Interface()
		if err := proto.Unmarshal(again, twin); err != nil {
			t.Fatalf("%s: what was written cannot be read: %v", mt.Descriptor().FullName(), err)
		}
		third, err := proto.MarshalOptions{Deterministic: true}.Marshal(twin)
		if err != nil || string(third) != string(again) {
			t.Fatalf("%s is another message when it is written again: %v", mt.Descriptor().FullName(), err)
		}
	})
}
