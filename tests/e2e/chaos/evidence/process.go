package evidence

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// keeperMark is the variable of a keeper's environment that holds its sandbox's id.
const keeperMark = "SANDTRAIL_KEEPER="

// process is what the kernel says of one.
type process struct {
	pid, parent int
	state       string
	args        []string
	// keeper is the id in the environment of a keeper, cgroup the groups it is in.
	keeper, cgroup string
	// output is where its standard error goes.
	output string
}

// allProcesses are those that still exist once they have been looked at.
func allProcesses() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := lookAtProcess(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

func lookAtProcess(pid int) (process, bool) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return process{}, false
	}
	// The name may hold anything; state and parent follow its closing bracket.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return process{}, false
	}
	p := process{pid: pid, state: fields[0]}
	p.parent, _ = strconv.Atoi(fields[1])
	line, _ := os.ReadFile(dir + "cmdline")
	p.args = strings.FieldsFunc(string(line), func(r rune) bool { return r == 0 })
	group, _ := os.ReadFile(dir + "cgroup")
	p.cgroup = string(group)
	environ, _ := os.ReadFile(dir + "environ")
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if id, ok := strings.CutPrefix(entry, keeperMark); ok {
			p.keeper = id
		}
	}
	p.output, _ = os.Readlink(dir + "fd/2")
	return p, true
}

func (p process) command() string { return strings.Join(p.args, " ") }

// processes are those of sandboxes of ours, the services that serve the state directory, and the zombies they have not taken.
func (s *survey) processes() error {
	all, err := allProcesses()
	if err != nil {
		return err
	}
	services := map[int]bool{}
	for _, p := range all {
		// Who says the state directory's name tells whose sandbox it is; a cgroup tells it of the rest.
		if id := s.named(p); id != "" {
			s.ours[id] = true
		}
		if s.serves(p) {
			services[p.pid] = true
		}
	}
	for _, p := range all {
		if p.pid == os.Getpid() {
			continue
		}
		zombie := p.state == "Z" || p.state == "X"
		id := s.named(p)
		if id == "" {
			if of := sandboxIn(p.cgroup); s.ours[of] {
				id = of
			}
		}
		r := Resource{Kind: Process, Name: p.command(), Sandbox: id, PID: p.pid, Zombie: zombie}
		switch {
		case id != "":
			r.Role = role(p)
		case services[p.pid], services[p.parent] && zombie:
			r.Role = RoleService
		case strings.Contains(p.command(), s.state+"/"):
			r.Role = RoleService
		default:
			continue
		}
		s.add(r)
	}
	return nil
}

// named is the sandbox that a process itself names, as one of this state directory; empty otherwise.
func (s *survey) named(p process) string {
	if p.keeper != "" && (s.ours[p.keeper] || s.within(p.output)) {
		return p.keeper
	}
	for _, arg := range p.args {
		// Of a path below the state directory only what stands behind it: the directory's own name may look like an id.
		if _, below, ok := strings.Cut(arg, s.state+"/"); ok {
			if id := sandboxBelow(below); id != "" {
				return id
			}
		}
	}
	return ""
}

// serves: one of the services of this state directory.
func (s *survey) serves(p process) bool {
	if len(p.args) == 0 || !strings.HasPrefix(filepath.Base(p.args[0]), "sandtrail") {
		return false
	}
	return s.within(p.output) || strings.Contains(p.command(), s.state)
}

func role(p process) string {
	program := ""
	if len(p.args) > 0 {
		program = filepath.Base(p.args[0])
	}
	switch {
	case p.keeper != "" && len(p.args) > 1 && p.args[1] == "keeper":
		return RoleKeeper
	case strings.HasPrefix(program, "runsc-sandbox"), strings.HasPrefix(program, "runsc") && strings.Contains(p.command(), " boot "):
		return RoleSentry
	default:
		return RoleGuest
	}
}

// namespaces are the mounts that name the state directory and the network namespaces of ours, each with one process that holds it.
func (s *survey) namespaces() error {
	all, err := allProcesses()
	if err != nil {
		return err
	}
	mine := map[int]string{}
	for _, r := range s.found {
		if r.Kind == Process {
			mine[r.PID] = r.Sandbox
		}
	}
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	mounted, nets := map[string]bool{}, map[string]bool{}
	for _, p := range all {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.pid)); err == nil && !mounted[ns] {
			mounted[ns] = true
			s.mounts(p.pid)
		}
		id, ours := mine[p.pid]
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.pid))
		if err == nil && ours && id != "" && ns != host && !nets[ns] {
			nets[ns] = true
			s.add(Resource{Kind: Netns, Name: ns, Sandbox: id, PID: p.pid})
		}
	}
	named, _ := filepath.Glob("/run/netns/*") // none without the directory
	for _, path := range named {
		if id := sandboxIn(filepath.Base(path)); s.ours[id] {
			s.add(Resource{Kind: Netns, Name: path, Sandbox: id})
		}
	}
	return nil
}

// mounts are those of a process's mount namespace that stand below the state directory, come from below it, or from a loop device
// on a file of it.
func (s *survey) mounts(pid int) {
	loops := map[string]string{}
	for _, r := range s.found {
		if r.Kind == Loop {
			loops[r.Name] = r.Sandbox
		}
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return // it has gone
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		dash := strings.Index(line, " - ")
		if len(fields) < 5 || dash < 0 {
			continue
		}
		source := strings.Fields(line[dash+3:])
		if len(source) < 2 {
			continue
		}
		id, loop := loops[source[1]]
		for _, path := range []string{fields[4], fields[3]} {
			if _, below, ok := strings.Cut(path, s.state+"/"); ok && id == "" {
				id = sandboxBelow(below)
			}
		}
		if id != "" || loop {
			s.add(Resource{Kind: Mount, Name: fields[4], Sandbox: id, PID: pid, Detail: source[1]})
		}
	}
}
