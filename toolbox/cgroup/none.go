package cgroup

// None is the group of a sandbox on a host that lets us make none: it limits nothing, and holds no process to measure or end.
func None() *Group { return &Group{v1: map[string]string{}} }

// Real reports whether there is a group.
func (g *Group) Real() bool { return len(g.dirs()) > 0 }
