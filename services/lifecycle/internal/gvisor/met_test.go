package gvisor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// forkBomb takes every process that it is given, for ever.
const forkBomb = `exec python3 -c '
import os
while True:
    try: os.fork()
    except OSError: pass'`

// fills writes to a file until that is refused, and stays long enough to be seen.
func fills(path string) string {
	return fmt.Sprintf(`exec python3 -c '
import errno, os, time
f = os.open("%s", os.O_CREAT | os.O_WRONLY)
try:
    while True: os.write(f, bytes(1 << 20))
except OSError as e: print(errno.errorcode[e.errno], flush=True)
time.sleep(1)'`, path)
}

// meets is one way to run into a limit, and what the end of the exec must say of it.
type meets struct {
	command string
	timeout time.Duration
	limit   string
	// value of the limit, where it is not what the sandbox was made with.
	value uint64
	says  string
	// out is what the program itself sees of it; empty: it does not live to tell.
	out string
	// hard: only where the host's kernel enforces it.
	hard bool
}

const (
	metMemory = 256 << 20
	metPIDs   = 64
	metSpace  = 32 << 20
	metRoot   = 64 << 20
)

// allocates takes memory in a way of its own until it is ended.
func allocates(how string) string {
	return "exec python3 -c '\nimport mmap, os\nheld = []\nwhile True:\n    " + how + "'"
}

var limitsToMeet = map[string]meets{
	"memory of the heap":                       {command: allocates(`held.append(b"x" * (1 << 20))`), limit: "memory", value: metMemory, says: "used its memory of 256 MiB"},
	"memory that is mapped":                    {command: allocates(`held.append(mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)); held[-1].write(b"x" * (4 << 20))`), limit: "memory", value: metMemory, says: "used its memory"},
	"memory that is mapped and shared":         {command: allocates(`held.append(mmap.mmap(-1, 4 << 20)); held[-1].write(b"x" * (4 << 20))`), limit: "memory", value: metMemory, says: "used its memory"},
	"memory of a process's children":           {command: allocates(`os.fork(); held.append(b"x" * (8 << 20))`), limit: "memory", value: metMemory, says: "used its memory"},
	"memory of files without a name":           {command: allocates(`held.append(os.memfd_create("f")); os.write(held[-1], bytes(4 << 20))`), limit: "memory", value: metMemory, says: "used its memory"},
	"processes":                                {command: forkBomb, timeout: 2 * time.Second, limit: "pids", value: metPIDs, says: "all of its 64 processes"},
	"threads":                                  {command: "exec python3 -c '\nimport threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(60,)).start()\n    except RuntimeError: time.sleep(0.1)'", timeout: 2 * time.Second, limit: "pids", value: metPIDs, says: "all of its 64 processes"},
	"the workspace's bytes":                    {command: fills("/workspace/f"), limit: "disk", value: metSpace, says: "workspace was full: of its 32 MiB", out: "ENOSPC\n", hard: true},
	"the workspace's bytes by a mapped file":   {command: "exec python3 -c '\nimport mmap, os, time\nf = os.open(\"/workspace/f\", os.O_CREAT | os.O_RDWR)\nn = 0\ntry:\n    while True:\n        os.posix_fallocate(f, n, 1 << 20)\n        n += 1 << 20\nexcept OSError as e: print(e.errno, flush=True)\nm = mmap.mmap(f, n)\nm.write(b\"x\" * n)\nm.flush()\ntime.sleep(1)'", limit: "disk", value: metSpace, says: "workspace was full", out: "28\n", hard: true},
	"the workspace's files":                    {command: "exec python3 -c '\nimport os, time\nos.mkdir(\"many\")\ntry:\n    for i in range(10_000_000): open(\"many/%d\" % i, \"w\").close()\nexcept OSError as e: print(e.errno, flush=True)\ntime.sleep(1)'", limit: "disk", value: metSpace, says: "workspace", out: "28\n", hard: true},
	"files outside of the workspace":           {command: fills("/var/tmp/f"), limit: "disk", value: metRoot, says: "outside of the workspace was full: of its 64 MiB", out: "ENOSPC\n"},
	"CPU time":                                 {command: "for i in 1 2 3 4; do timeout 2 sh -c 'while :; do :; done' & done; wait", limit: "cpu", value: 500, says: "CPU time of 0.5 cores", hard: true},
	"output":                                   {command: "exec python3 -c '\nimport sys\nfor i in range(64): sys.stdout.write(\"x\" * (1 << 20))'", limit: "output", value: 1 << 20, says: "output were dropped"},
	"time":                                     {command: "sleep 600", timeout: 300 * time.Millisecond, limit: "time", value: 300, says: "its time of 300ms was over"},
	"time of children that do not want to end": {command: "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 601' & sleep 602", timeout: 300 * time.Millisecond, limit: "time", value: 300, says: "its time of 300ms was over"},
}

// TestALimitThatWasMetIsInTheEnd runs into each limit from inside. The end of the exec names it, and its value, by what is seen
// from outside; the sandbox goes on afterwards, or has ended for want of memory.
func TestALimitThatWasMetIsInTheEnd(t *testing.T) {
	h := newHost(t, t.TempDir(), func(o *Options) { o.OverlayBytes, o.OutputCap = metRoot, 1<<20 })
	for name, m := range limitsToMeet {
		if m.hard && rootless {
			// Without root there is no such limit, or it is only watched: TestLimits.
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := metSpec()
			if m.limit == "pids" {
				// A bomb has the sandbox's memory too where there is little of it: then the sandbox ends for that.
				s.MemoryBytes = 1 << 30
			}
			create(t, h, s)
			out, end := h.alone(t, s.ID, &toolboxv1.Start{Argv: []string{"sh", "-c", m.command}, TimeoutMs: uint64(m.timeout.Milliseconds())}, m.limit == "output") //nolint:gosec // not negative
			t.Logf("%v", end)
			hit := metIn(end, m.limit)
			require.NotNil(t, hit, "%v", end)
			require.Equal(t, m.value, hit.GetValue())
			require.Contains(t, hit.GetMessage(), m.says)
			require.Contains(t, []string{"host", "seen"}, hit.GetSource())
			if m.limit != "output" {
				require.Equal(t, m.out, out)
			}
			if end.GetReason() == "oom_killed" {
				require.Equal(t, "memory", m.limit)
				require.NotZero(t, end.GetExitCode())
				return
			}
			if m.timeout > 0 {
				require.Equal(t, "timed_out", end.GetReason())
			}
			after, end, err := h.run(bounded(t), s.ID, "echo goes on")
			require.NoError(t, err)
			require.Equal(t, "goes on\n", after, "%v", end)
			require.Nil(t, metIn(end, "pids"), "what was ended is gone")
			require.Nil(t, metIn(end, "time"))
			require.Nil(t, metIn(end, "memory"))
		})
	}
}

// TestNoLimitIsNamedThatWasNotMet: a program within its limits has none in its end.
func TestNoLimitIsNamedThatWasNotMet(t *testing.T) {
	h := newHost(t, t.TempDir())
	s := metSpec()
	s.CPUMillis = 2000
	create(t, h, s)
	_, end, err := h.run(bounded(t), s.ID, "dd if=/dev/zero of=f bs=1M count=10 2>/dev/null; sleep 1 & sleep 1; rm f; seq 1 1000")
	require.NoError(t, err)
	require.Equal(t, "exited", end.GetReason())
	for _, limit := range []string{"memory", "pids", "disk", "output", "time"} {
		require.Nil(t, metIn(end, limit), "%v", end)
	}
}

// TestATimeoutEndsAForkBombInTime: a program that leaves nobody any CPU and forks faster than it is ended is gone a moment after
// its time is over, whole, and the next command has every process of the sandbox to itself.
func TestATimeoutEndsAForkBombInTime(t *testing.T) {
	h := newHost(t, t.TempDir())
	s := metSpec()
	s.MemoryBytes = 1 << 30
	create(t, h, s)
	for _, how := range []string{
		forkBomb,
		strings.Replace(forkBomb, "import os", "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", 1),
		// Under a name that looks like the end of a process.
		strings.Replace(forkBomb, "import os", "import os\nopen(\"/proc/self/comm\", \"w\").write(\"x\\nState:\\tZ\")\n", 1),
	} {
		const limit = 2 * time.Second
		begin := time.Now()
		_, end := h.alone(t, s.ID, &toolboxv1.Start{Argv: []string{"sh", "-c", how}, TimeoutMs: uint64(limit.Milliseconds())}, false)
		took := time.Since(begin)
		t.Logf("ended after %s: %v", took, end)
		require.Equal(t, "timed_out", end.GetReason())
		// A bound for any machine: it was 28 seconds where a program of the sandbox had to end it.
		require.Less(t, took, limit+10*time.Second)
		out, end, err := h.run(bounded(t), s.ID, `python3 -c '
import os, time
n = 0
try:
    while n < 62:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError: pass
print(n, flush=True)
os.kill(0, 9)'`)
		require.NoError(t, err)
		require.Equal(t, "62\n", out, "%v", end)
	}
}

func metSpec() runtime.Spec {
	s := spec()
	s.MemoryBytes, s.PIDs, s.WorkspaceBytes, s.CPUMillis = metMemory, metPIDs, metSpace, 500
	return s
}

func metIn(end *toolboxv1.End, limit string) *commonv1.LimitHit {
	for _, hit := range end.GetLimits() {
		if hit.GetLimit() == limit {
			return hit
		}
	}
	return nil
}

// alone runs a program; late: nobody reads its output before its end.
func (h *host) alone(t *testing.T, id string, r *toolboxv1.Start, late bool) (string, *toolboxv1.End) {
	t.Helper()
	r.ExecId = ids.New()
	ctx := bounded(t)
	_, err := h.client(id).Start(ctx, r)
	require.NoError(t, err)
	if late {
		require.Eventually(t, func() bool {
			list, err := h.client(id).List(ctx, &toolboxv1.List{})
			require.NoError(t, err)
			for _, e := range list.GetExecs() {
				if e.GetExecId() == r.GetExecId() {
					return e.GetEnd() != nil
				}
			}
			return false
		}, time.Minute, 20*time.Millisecond)
	}
	out, end, err := h.follow(ctx, id, r.GetExecId())
	require.NoError(t, err)
	return out, end
}
