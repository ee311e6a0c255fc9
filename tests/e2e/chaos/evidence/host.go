package evidence

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// cgroupRoot is where the host's cgroups are mounted, of whatever version.
const cgroupRoot = "/sys/fs/cgroup"

var (
	uuidPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	// runtimePattern is a sandbox's id as runsc and its cgroup have it.
	runtimePattern = regexp.MustCompile(`\bst([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})\b`)
)

// sandboxIn finds the id of a sandbox in a name; empty without one.
func sandboxIn(name string) string {
	if m := runtimePattern.FindStringSubmatch(name); m != nil {
		return strings.Join(m[1:], "-")
	}
	return uuidPattern.FindString(name)
}

// pool is where workspaces lie before they are anybody's: the ids there are no sandboxes'.
const pool = "workspaces/.pool/"

// sandboxBelow finds the sandbox that a path below the state directory belongs to; empty without one.
func sandboxBelow(path string) string {
	if strings.HasPrefix(path, pool) {
		return ""
	}
	return sandboxIn(path)
}

// survey is one look at a host.
type survey struct {
	state string
	// ours are the ids of sandboxes that belong to this state directory: a host may have several.
	ours  map[string]bool
	found []Resource
}

// LookAtHost finds what carries the name of a sandbox of this state directory, or lies in it: processes, mounts, loop devices,
// cgroups, network namespaces, sockets, files. known are the sandboxes that the log has placed there; a cgroup or namespace names
// no state directory, so of a sandbox that nothing else tells of only a known one is found. What has gone while it was looked at
// is left out.
func LookAtHost(worker, stateDir string, known []string) (Host, error) {
	state, err := filepath.Abs(stateDir)
	if err != nil {
		return Host{}, fmt.Errorf("look at the host of worker %s: %w", worker, err)
	}
	s := &survey{state: state, ours: map[string]bool{}, found: []Resource{}}
	for _, id := range known {
		s.ours[id] = true
	}
	h := Host{Worker: worker, StateDir: state, Taken: time.Now().UTC()}
	for _, look := range []func() error{s.files, s.loops, s.processes, s.cgroups, s.namespaces, s.sockets} {
		if err := look(); err != nil {
			return h, fmt.Errorf("look at the host of worker %s: %w", worker, err)
		}
	}
	slices.SortFunc(s.found, func(a, b Resource) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.Name, b.Name), cmp.Compare(a.PID, b.PID))
	})
	h.Found = s.found
	return h, nil
}

// SampleHost tells which sandboxes run on a host now: for Sample, as often as it is wanted.
func SampleHost(worker, stateDir string) (Sample, error) {
	state, err := filepath.Abs(stateDir)
	if err != nil {
		return Sample{}, fmt.Errorf("look at the host of worker %s: %w", worker, err)
	}
	s := &survey{state: state, ours: map[string]bool{}}
	out := Sample{At: time.Now().UTC(), Worker: worker, Sandboxes: []string{}}
	if err := s.processes(); err != nil {
		return out, fmt.Errorf("look at the host of worker %s: %w", worker, err)
	}
	for _, r := range s.found {
		if r.Role == RoleSentry && !r.Zombie {
			out.Sandboxes = append(out.Sandboxes, r.Sandbox)
		}
	}
	slices.Sort(out.Sandboxes)
	return out, nil
}

func (s *survey) add(r Resource) {
	if r.Sandbox != "" {
		s.ours[r.Sandbox] = true
	}
	s.found = append(s.found, r)
}

// files are the entries of the directories of sandboxes, locks, workspaces and of what is kept.
func (s *survey) files() error {
	for dir, kind := range map[string]Kind{"sandboxes": Directory, "locks": File, "workspaces": Workspace, "sandboxes/.kept": Kept} {
		entries, err := os.ReadDir(filepath.Join(s.state, dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			id := sandboxIn(e.Name())
			if id == "" {
				continue
			}
			r := Resource{Kind: kind, Name: filepath.Join(s.state, dir, e.Name()), Sandbox: id}
			if _, err := os.Lstat(filepath.Join(r.Name, KeptRoot)); kind == Kept && err == nil {
				r.Detail = KeptRoot
			}
			s.add(r)
		}
	}
	return nil
}

// loops are the loop devices on files of the state directory.
func (s *survey) loops() error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has gone
		}
		backing := strings.TrimSpace(string(data))
		if !s.within(backing) {
			continue
		}
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(f)))
		s.add(Resource{Kind: Loop, Name: device, Sandbox: sandboxBelow(strings.TrimPrefix(backing, s.state+"/")), Detail: backing})
	}
	return nil
}

func (s *survey) within(path string) bool { return strings.HasPrefix(path, s.state+"/") }

// cgroups are the groups with the name of a sandbox of ours, of every hierarchy.
func (s *survey) cgroups() error {
	return filepath.WalkDir(cgroupRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // a group that has gone
		}
		id := sandboxIn(d.Name())
		if id == "" || !s.ours[id] {
			return nil
		}
		procs, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		s.add(Resource{Kind: Cgroup, Name: path, Sandbox: id, Detail: fmt.Sprintf("%d processes", bytes.Count(procs, []byte("\n")))})
		return filepath.SkipDir
	})
}

// sockets are the unix sockets below the state directory, of every network namespace that a process of ours is in.
func (s *survey) sockets() error {
	seen := map[string]bool{}
	lists := []string{"/proc/net/unix"}
	for _, r := range s.found {
		if r.Kind == Netns && r.PID != 0 {
			lists = append(lists, fmt.Sprintf("/proc/%d/net/unix", r.PID))
		}
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // its process has gone
		}
		for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 8 {
				continue
			}
			name := fields[7]
			id := sandboxIn(name)
			if seen[name] || !s.within(name) && (id == "" || !s.ours[id]) {
				continue
			}
			seen[name] = true
			s.add(Resource{Kind: Socket, Name: name, Sandbox: id})
		}
	}
	return nil
}
