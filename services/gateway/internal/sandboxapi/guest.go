package sandboxapi

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// guestTime bounds a command that this API runs by itself.
const guestTime = 30 * time.Second

// guest runs a program in a sandbox for a route that has no other way. Its arguments are handed over as they are: no shell is ever built
// from what a caller sends. It is an exec like any other, recorded and metered.
func (c *call) guest(id string, stdin []byte, argv ...string) (*gathered, sandbox.Exec, error) {
	g := c.gather(false)
	req := &computev1.ExecCommandRequest{SandboxId: id, Command: argv[0], Args: argv[1:], Stdin: stdin, Timeout: durationpb.New(guestTime)}
	if _, err := c.use.Exec(c.ctx, c.p, "", req, g); err != nil {
		return g, sandbox.Exec{}, err
	}
	x, err := c.use.Receipt(c.ctx, c.p, id, g.id)
	if err == nil {
		err = outcome(x)
	}
	if err == nil && x.Completed.GetReason() == sandbox.ReasonTimedOut {
		err = fault.Newf(fault.DeadlineExceeded, fault.ReasonTimeout, "it took longer than %s in the sandbox", guestTime)
	}
	c.w.Header().Del(headerExecution)
	return g, x, err
}

// script runs a shell script of this program, with what the caller sends as its arguments. The script ends with 0 or is an error.
func (c *call) script(id, script string, args ...string) ([]byte, error) {
	g, x, err := c.guest(id, nil, append([]string{"sh", "-c", script, "sh"}, args...)...)
	defer g.Release()
	if err != nil {
		return nil, err
	}
	if code := x.Completed.GetExitCode(); code != 0 {
		return nil, failed(code, g.Stderr)
	}
	return bytes.Clone(g.Stdout), nil
}

// codeMissing is how scripts say that nothing is at a path.
const codeMissing = 44

func failed(code int32, stderr []byte) error {
	said, _, _ := strings.Cut(strings.TrimSpace(text(stderr)), "\n")
	switch {
	case code == codeMissing || strings.Contains(said, "No such file"):
		return fault.New(fault.NotFound, fault.ReasonPathNotFound, "nothing is at the path")
	case strings.Contains(said, "ermission denied") || strings.Contains(said, "not permitted") || strings.Contains(said, "Read-only"):
		return fault.Newf(fault.PermissionDenied, fault.ReasonPathNotFile, "the sandbox's user may not do that: %.200s", said)
	case strings.Contains(said, "No space"):
		return fault.New(fault.ResourceExhausted, fault.ReasonDiskFull, "the workspace is full")
	case code == 127 || code == 126:
		return fault.New(fault.FailedPrecondition, fault.ReasonStartFailed, "the image has no shell, or not the programs that this route needs")
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonConflict, "it failed in the sandbox: %.200s", orElse(said, "exit code "+strconv.Itoa(int(code))))
}

// aboutScript prints what the guest says of itself, one NAME=VALUE a line.
const aboutScript = `echo "machine=$(uname -m)"; echo "kernel=$(uname -r)"; echo "shell=${SHELL:-$(command -v bash || command -v sh)}"; echo "cwd=$(pwd)"; echo "home=${HOME:-}"
if [ -r /etc/os-release ]; then . /etc/os-release; echo "pretty=$PRETTY_NAME"; fi`

type about struct {
	Arch          string `json:"arch"`
	OS            string `json:"os"`
	OSVersion     string `json:"os_version"`
	KernelVersion string `json:"kernel_version"`
	Shell         string `json:"shell"`
	WorkDir       string `json:"work_dir"`
	Home          string `json:"home"`
}

var arches = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// about is what the guest says of itself.
func (c *call) about() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	said, err := c.script(id, aboutScript)
	if err != nil {
		return err
	}
	v := values(said, "=")
	return c.answer(http.StatusOK, about{
		Arch: orElse(arches[v["machine"]], v["machine"]), OS: "linux", OSVersion: v["pretty"], KernelVersion: v["kernel"], Shell: v["shell"],
		WorkDir: v["cwd"], Home: v["home"],
	})
}

// values reads lines of a name and a value.
func values(said []byte, between string) map[string]string {
	v := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(said))
	for lines.Scan() {
		if name, value, ok := strings.Cut(text(lines.Bytes()), between); ok {
			v[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return v
}

// loadScript prints memory and the workspace's disk as the guest sees them.
const loadScript = `echo "cpus=$(nproc 2>/dev/null || echo 0)"; awk '/^MemTotal|^MemAvailable/ {print $1 "=" $2}' /proc/meminfo | tr -d :
df -kP . | awk 'NR == 2 {print "disk=" $2; print "used=" $3}'`

type load struct {
	CPUCount   float64 `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"`
	DiskTotal  uint64  `json:"disk_total"`
	DiskUsed   uint64  `json:"disk_used"`
}

// load is what a sandbox uses now. CPU is measured from outside, over the time that the rest takes; memory and disk are as the guest has
// them, and of memory only as much as its limit.
func (c *call) load() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	before, err := c.use.Describe(c.ctx, c.p, id)
	if err != nil {
		return err
	}
	begin := time.Now()
	said, err := c.script(id, loadScript)
	if err != nil {
		return err
	}
	after, err := c.use.Describe(c.ctx, c.p, id)
	if err != nil {
		return err
	}
	v := values(said, "=")
	number := func(name string, unit uint64) uint64 {
		n, _ := strconv.ParseUint(v[name], 10, 50) // what is no number is not known: 0
		return n * unit
	}
	out := load{
		CPUCount: float64(number("cpus", 1)), MemTotal: number("MemTotal", 1<<10), DiskTotal: number("disk", 1<<10), DiskUsed: number("used", 1<<10),
	}
	if free := number("MemAvailable", 1<<10); free < out.MemTotal {
		out.MemUsed = out.MemTotal - free
	}
	if most := after.Limits.GetMemoryBytes(); most > 0 && most < out.MemTotal {
		out.MemTotal = most
	}
	out.MemUsed = min(out.MemUsed, out.MemTotal)
	if most := after.Limits.GetCpuMillis(); most > 0 {
		out.CPUCount = float64(most) / 1000
	}
	if took := time.Since(begin); after.Usage.GetCpuMs() >= before.Usage.GetCpuMs() && out.CPUCount > 0 {
		used := float64(after.Usage.GetCpuMs()-before.Usage.GetCpuMs()) / float64(max(took.Milliseconds(), 1)) / out.CPUCount
		out.CPUUsedPct = min(100*used, 100)
	}
	return c.answer(http.StatusOK, out)
}

const (
	defaultTail, maxTail = 100, 10_000
	// maxWords is how much of a command is shown in a line of logs, in bytes.
	maxWords = 200
)

// logs are the last things that happened to a sandbox and in it, a line each, oldest first. A sandbox has no main program whose output
// could be shown; that of commands is in their answers.
func (c *call) logs() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	tail := defaultTail
	if t := c.r.URL.Query().Get("tail"); t != "" && t != "all" {
		n, err := strconv.Atoi(t)
		if err != nil || n < 0 {
			return field("tail", fmt.Sprintf("must be a number of lines up to %d, or all", maxTail))
		}
		tail = min(n, maxTail)
	} else if t == "all" {
		tail = maxTail
	}
	lines, err := c.told(id, tail)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	return c.Whole(http.StatusOK, mediaText, b.Bytes())
}
