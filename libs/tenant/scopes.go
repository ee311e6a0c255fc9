package tenant

import (
	"fmt"
	"strings"
)

// Scopes are what a credential allows, as a set.
type Scopes uint8

// The scopes. Admin allows what every other one does, and what is there for administrators only.
const (
	Create Scopes = 1 << iota
	Inspect
	Execute
	Files
	Stop
	Admin

	// None allows nothing, All everything.
	None Scopes = 0
	All         = Create | Inspect | Execute | Files | Stop | Admin
)

var scopeNames = []struct {
	scope Scopes
	name  string
}{
	{Create, "create"}, {Inspect, "inspect"}, {Execute, "execute"}, {Files, "files"}, {Stop, "stop"}, {Admin, "admin"},
}

// Allows reports whether any scope of any is in s.
func (s Scopes) Allows(any Scopes) bool { return s&(any|Admin) != 0 }

// Names are the names of the scopes in s, in their order.
func (s Scopes) Names() []string {
	names := []string{}
	for _, n := range scopeNames {
		if s&n.scope != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// String is the names of the scopes with commas between them.
func (s Scopes) String() string { return strings.Join(s.Names(), ",") }

// ParseScopes reads names of scopes: at least one, each at most once.
func ParseScopes(names []string) (Scopes, error) {
	var s Scopes
next:
	for _, name := range names {
		for _, n := range scopeNames {
			if n.name != name {
				continue
			}
			if s&n.scope != 0 {
				return None, fmt.Errorf("scope %s is given twice", name)
			}
			s |= n.scope
			continue next
		}
		return None, fmt.Errorf("%q is none of %s", name, All)
	}
	if s == None {
		return None, fmt.Errorf("at least one scope of %s is needed", All)
	}
	return s, nil
}

// known is ParseScopes for a log that may hold scopes of a later version: they allow nothing here.
func known(names []string) Scopes {
	var s Scopes
	for _, name := range names {
		if one, err := ParseScopes([]string{name}); err == nil {
			s |= one
		}
	}
	return s
}
