package events

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// MaxTypes bounds the types of a filter.
	MaxTypes   = 64
	everything = "*"
)

// Filter says which events are wanted. The zero Filter wants all.
type Filter struct {
	// Tenant is one tenant's id.
	Tenant string
	// Kinds of aggregates.
	Kinds []subject.Kind
	// Sandbox is one sandbox's id: its own events, its execs' and its workspace's.
	Sandbox string
	// Types are short names, e.g. ExecCompleted. One that this program does not know is allowed: a newer one may write it.
	Types []string
}

// scoped are the kinds of aggregates that belong to a sandbox.
var scoped = []subject.Kind{subject.KindSandbox, subject.KindExec, subject.KindWorkspace}

// Validate says what is wrong, by field: fault.InvalidArgument.
func (f Filter) Validate() error {
	fields := map[string]string{}
	if f.Tenant != "" && !subject.ValidToken(f.Tenant) {
		fields["tenant"] = "is not the id of a tenant"
	}
	if f.Sandbox != "" && !subject.ValidToken(f.Sandbox) {
		fields["sandbox"] = "is not the id of a sandbox"
	}
	for _, k := range f.Kinds {
		if !slices.Contains(subject.Kinds(), k) {
			fields["kinds"] = "an aggregate is one of " + strings.Join(kindNames(subject.Kinds()), ", ")
		} else if f.Sandbox != "" && !slices.Contains(scoped, k) {
			fields["kinds"] = "of a sandbox are " + strings.Join(kindNames(scoped), ", ")
		}
	}
	if len(f.Types) > MaxTypes {
		fields["types"] = "are too many"
	}
	for _, t := range f.Types {
		if !protoreflect.Name(t).IsValid() || len(t) > 64 {
			fields["types"] = "a type is a name such as ExecCompleted"
		}
	}
	if len(fields) > 0 {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the filter is not valid").WithFields(fields)
	}
	return nil
}

func kindNames(kinds []subject.Kind) (names []string) {
	for _, k := range kinds {
		names = append(names, string(k))
	}
	return names
}

// Subjects are the filters of subjects that hold all that is wanted, and nothing else but events of other types.
func (f Filter) Subjects() []string {
	kinds := f.Kinds
	if f.Sandbox != "" && len(kinds) == 0 {
		kinds = scoped
	}
	if len(kinds) == 0 {
		if f.Tenant == "" {
			return []string{subject.Events}
		}
		return []string{subject.OfTenant(f.Tenant)}
	}
	var all []string
	for _, k := range kinds {
		all = append(all, subject.OfKind(f.Tenant, k, f.Sandbox))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Wants reports whether an event of a full type name is wanted, wherever it stands.
func (f Filter) Wants(fullType string) bool {
	return len(f.Types) == 0 || slices.Contains(f.Types, fullType[strings.LastIndexByte(fullType, '.')+1:])
}

// Matches reports whether an event of an aggregate is wanted.
func (f Filter) Matches(agg subject.Aggregate, fullType string) bool {
	return f.Wants(fullType) && (f.Tenant == "" || f.Tenant == agg.Tenant) && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, agg.Kind)) &&
		(f.Sandbox == "" || (f.Sandbox == agg.Sandbox && slices.Contains(scoped, agg.Kind)))
}

// Known reports whether this program has a type of this short name.
func Known(shortType string) bool {
	return eventsv1.File_events_v1_events_proto.Messages().ByName(protoreflect.Name(shortType)) != nil
}

// Topic is the filter as the name of a Watermill topic: tenant/kinds/sandbox/types, each * where all are wanted, several with commas
// between them. Equal filters have equal topics.
func (f Filter) Topic() string {
	one := func(s string) string {
		if s == "" {
			return everything
		}
		return s
	}
	several := func(all []string) string {
		all = slices.Clone(all)
		slices.Sort(all)
		return one(strings.Join(slices.Compact(all), ","))
	}
	return strings.Join([]string{one(f.Tenant), several(kindNames(f.Kinds)), one(f.Sandbox), several(f.Types)}, "/")
}

// ParseTopic is the inverse of Topic. fault.InvalidArgument where it is none.
func ParseTopic(topic string) (Filter, error) {
	parts := strings.Split(topic, "/")
	if len(parts) != 4 {
		return Filter{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the topic is not valid").
			WithFields(map[string]string{"topic": "has the form tenant/kinds/sandbox/types, each * for all"})
	}
	one := func(s string) string {
		if s == everything {
			return ""
		}
		return s
	}
	several := func(s string) []string {
		if s == everything {
			return nil
		}
		return strings.Split(s, ",")
	}
	f := Filter{Tenant: one(parts[0]), Sandbox: one(parts[2]), Types: several(parts[3])}
	for _, k := range several(parts[1]) {
		f.Kinds = append(f.Kinds, subject.Kind(k))
	}
	return f, f.Validate()
}

// digest names a filter where its topic is too long.
func (f Filter) digest() string {
	sum := sha256.Sum256([]byte(f.Topic()))
	return hex.EncodeToString(sum[:8])
}
