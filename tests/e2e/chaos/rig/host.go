package rig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Part of a sandbox on the host.
type Part string

// Parts.
const (
	Keeper Part = "keeper"
	Sentry Part = "sandbox"
)

// Member is a process of a sandbox.
type Member struct {
	Sandbox string
	Part    Part
	PID     int
}

// Members are the keepers and sentries of the rig's sandboxes, in the order of their sandboxes.
func (r *Rig) Members() []Member {
	ids, err := os.ReadDir(filepath.Join(r.State, "sandboxes"))
	if err != nil {
		return nil
	}
	mine := map[string]string{}
	for _, id := range ids {
		if strings.HasPrefix(id.Name(), ".") {
			continue
		}
		mine["st"+strings.ReplaceAll(r.mark(id.Name()), "-", "")] = id.Name()
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []Member
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if mark, ok := keeperOf(pid); ok && mine["st"+strings.ReplaceAll(mark, "-", "")] != "" {
			all = append(all, Member{Sandbox: mine["st"+strings.ReplaceAll(mark, "-", "")], Part: Keeper, PID: pid})
		} else if id, ok := sentryOf(pid, mine); ok {
			all = append(all, Member{Sandbox: id, Part: Sentry, PID: pid})
		}
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Sandbox+string(a.Part), b.Sandbox+string(b.Part)) })
	return all
}

// mark is what the processes of a sandbox carry: its id, or that of the warm one that it was.
func (r *Rig) mark(id string) string {
	var record struct {
		Warm string `json:"warm"`
	}
	data, err := os.ReadFile(filepath.Join(r.State, "sandboxes", id, "sandbox.json"))
	if err != nil || json.Unmarshal(data, &record) != nil || record.Warm == "" {
		return id
	}
	return record.Warm
}

// keeperOf reads the mark that the driver puts into a keeper's environment. What a keeper starts has it too, under another name.
func keeperOf(pid int) (string, bool) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(name)) != "toolbox" {
		return "", false
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", false
	}
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if id, ok := strings.CutPrefix(string(entry), "SANDTRAIL_KEEPER="); ok {
			return id, true
		}
	}
	return "", false
}

// sentryOf finds the process in which gVisor runs a sandbox: its last argument is the sandbox's name.
func sentryOf(pid int, mine map[string]string) (string, bool) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", false
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	id, ok := mine[args[len(args)-1]]
	return id, ok && slices.Contains(args, "boot")
}
