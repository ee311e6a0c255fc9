// Package ids makes ids. Those of events and of repeated requests are derived, so that a retry makes the same ones.
package ids

import (
	"strconv"

	"github.com/google/uuid"
)

// space is the namespace of every derived id; changing it would make retries look new.
var space = uuid.MustParse("7a3f5c52-8f0e-5d0b-9c55-3a1f6f1d2b10")

// New is a random UUIDv4 in lower case.
func New() string { return uuid.NewString() }

// Valid reports whether s is a UUID in the canonical lower-case form, the only one that subjects and keys hold.
func Valid(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && u.String() == s
}

// Derive is the UUIDv5 of the parts. Each part stands behind its length, so that ("a", "bc") and ("ab", "c") differ.
func Derive(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = strconv.AppendInt(b, int64(len(p)), 10)
		b = append(b, ':')
		b = append(b, p...)
	}
	return uuid.NewSHA1(space, b).String()
}

// Event is the id of the index-th event that a command decided.
func Event(commandID string, index int) string {
	return Derive("event", commandID, strconv.Itoa(index))
}

// Usage is the id of the usage row of an event: agents.usage_events.id.
func Usage(eventID string) string { return Derive("usage", eventID) }

// Short is the first eight characters: the part of an id in Kubernetes names and hostnames. It is not unique.
func Short(id string) string {
	if len(id) < 8 {
		return id
	}
	return id[:8]
}
