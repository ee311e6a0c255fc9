package gvisor

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime/runtimetest"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

func TestStopContract(t *testing.T) {
	runtimetest.RunStops(t, func(t *testing.T) runtimetest.Fixture {
		h := newHost(t, t.TempDir())
		return runtimetest.Fixture{Driver: h, Image: debian.Reference, Exec: h.exec, Leftovers: h.leftovers}
	})
}

// TestStopContractFromThePool: of a sandbox that was warm before somebody had it.
func TestStopContractFromThePool(t *testing.T) {
	runtimetest.RunStops(t, func(t *testing.T) runtimetest.Fixture {
		h := &warmHost{newHost(t, t.TempDir(), func(o *Options) { o.Warm.Max = 16 }), sync.Mutex{}, map[string]string{}}
		t.Cleanup(func() { drain(t, h.host) })
		return runtimetest.Fixture{Driver: h, Image: debian.Reference, Exec: h.exec, Leftovers: h.leftovers}
	})
}

// TestARootIsKeptOnTheDiskOfTheSandboxes: an operator may give the directories of sandboxes a disk of their own.
func TestARootIsKeptOnTheDiskOfTheSandboxes(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: mounts a disk and runs a sandbox")
	}
	state := t.TempDir()
	disk := filepath.Join(state, "sandboxes")
	require.NoError(t, os.Mkdir(disk, 0o700))
	require.NoError(t, unix.Mount("sandboxes", disk, "tmpfs", 0, "size=1g,mode=0700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	h := newHost(t, state)
	s := spec()
	create(t, h, s)
	_, exit, err := h.exec(bounded(t), s.ID, "echo kept > /var/tmp/mark")
	require.NoError(t, err)
	require.Zero(t, exit)
	_, err = h.Stop(bounded(t), s.ID)
	require.NoError(t, err)
	s.Resume = true
	create(t, h, s)
	out, _, err := h.exec(bounded(t), s.ID, "cat /var/tmp/mark")
	require.NoError(t, err)
	require.Equal(t, "kept\n", out)
	// Where that disk is nearly full, nothing is begun.
	require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT, "size=64m,mode=0700"))
	_, err = h.Stop(bounded(t), s.ID)
	require.True(t, fault.Is(err, fault.ReasonDiskFull), "%v", err)
	_, exit, err = h.exec(bounded(t), s.ID, "true")
	require.NoError(t, err)
	require.Zero(t, exit)
}

// TestAStopIsFinishedWhereverItWasCutShort: what a stop leaves that was killed at each of its steps is finished by the next.
func TestAStopIsFinishedWhereverItWasCutShort(t *testing.T) {
	shut := func(t *testing.T, h *host, id string) {
		_, err := h.client(id).Shutdown(bounded(t), &toolboxv1.Shutdown{KeepRoot: true})
		require.NoError(t, err)
	}
	for name, cut := range map[string]func(t *testing.T, h *host, id string){
		"behind the keeper's work": shut,
		"with nobody to tell the usage": func(t *testing.T, h *host, id string) {
			shut(t, h, id)
			require.NoError(t, endKeepers(bounded(t), id, 5*time.Second))
		},
		"behind the run's file": func(t *testing.T, h *host, id string) {
			rec, err := readRecord(h.dir(id))
			require.NoError(t, err)
			lost, err := h.keep(bounded(t), id, rec)
			require.NoError(t, err)
			require.Empty(t, lost)
		},
		"behind the root's rename": func(t *testing.T, h *host, id string) {
			rec, err := readRecord(h.dir(id))
			require.NoError(t, err)
			lost, err := h.keep(bounded(t), id, rec)
			require.NoError(t, err)
			require.Empty(t, lost)
			require.NoError(t, os.Rename(filepath.Join(h.dir(id), launch.KeptRoot), filepath.Join(h.kept(id), rootDir)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, t.TempDir())
			s := spec()
			create(t, h, s)
			_, exit, err := h.exec(bounded(t), s.ID, "echo kept > /var/tmp/mark")
			require.NoError(t, err)
			require.Zero(t, exit)
			cut(t, h, s.ID)
			_, err = h.Stop(bounded(t), s.ID)
			require.NoError(t, err)
			require.Empty(t, h.leftovers(s.ID))
			s.Resume = true
			create(t, h, s)
			out, _, err := h.exec(bounded(t), s.ID, "cat /var/tmp/mark")
			require.NoError(t, err)
			require.Equal(t, "kept\n", out)
		})
	}
}

// TestARootThatWasNeverKeptIsSaidToBeLost: a sandbox whose keeper or sentry is killed before its root was kept has only its workspace.
func TestARootThatWasNeverKeptIsSaidToBeLost(t *testing.T) {
	for name, victims := range map[string]func(h *host, id string) []int{
		"keeper": func(_ *host, id string) []int { return keepers(id) },
		"sentry": func(h *host, id string) []int { return sandboxPids(t, h, id) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, t.TempDir())
			s := spec()
			create(t, h, s)
			_, _, err := h.exec(bounded(t), s.ID, "echo kept > /workspace/mark; sync")
			require.NoError(t, err)
			for _, pid := range victims(h, s.ID) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			require.Eventually(t, func() bool {
				st, err := h.Inspect(t.Context(), s.ID)
				return err == nil && !st.Alive
			}, 10*time.Second, 10*time.Millisecond)
			_, err = h.Stop(bounded(t), s.ID)
			require.True(t, fault.Is(err, fault.ReasonSandboxLost), "%v", err)
			require.Empty(t, h.leftovers(s.ID))
			create(t, h, s)
			out, _, err := h.exec(bounded(t), s.ID, "cat /workspace/mark")
			require.NoError(t, err)
			require.Equal(t, "kept\n", out)
		})
	}
}

// TestAStartThatIsGivenUpKeepsTheRoot: Stop behind a start that was cut short leaves what was kept before.
func TestAStartThatIsGivenUpKeepsTheRoot(t *testing.T) {
	h := newHost(t, t.TempDir())
	s := spec()
	create(t, h, s)
	_, _, err := h.exec(bounded(t), s.ID, "echo kept > /var/tmp/mark")
	require.NoError(t, err)
	first, err := h.Stop(bounded(t), s.ID)
	require.NoError(t, err)
	// As of a start that died behind its record.
	require.NoError(t, os.Mkdir(h.dir(s.ID), 0o700))
	require.NoError(t, writeRecord(h.dir(s.ID), record{Tenant: s.Tenant, CreatedAt: time.Now().UTC()}))
	again, err := h.Stop(bounded(t), s.ID)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.NoFileExists(t, h.dir(s.ID))
	s.Resume = true
	create(t, h, s)
	out, _, err := h.exec(bounded(t), s.ID, "cat /var/tmp/mark")
	require.NoError(t, err)
	require.Equal(t, "kept\n", out)
}

// TestATreeThatWouldFillTheDiskIsNotKept: contents have their limit, names have another.
func TestATreeThatWouldFillTheDiskIsNotKept(t *testing.T) {
	for name, c := range map[string]struct{ script, why string }{
		"many files": {"for i in range(40000): open(str(i), 'w').close()", "too many files"},
		// Each stands in the tree with its whole path: the sentry's memory ends before the disk does.
		"nested directories": {"for _ in range(12000):\n  os.mkdir('d' * 8)\n  os.chdir('d' * 8)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, t.TempDir())
			s := spec()
			s.MemoryBytes = 128 << 20
			create(t, h, s)
			_, exit, err := h.exec(bounded(t), s.ID, "python3 -c \"import os\nos.chdir('/var/tmp')\n"+c.script+"\"; echo kept > /workspace/mark; sync")
			require.NoError(t, err)
			require.Zero(t, exit)
			_, err = h.Stop(bounded(t), s.ID)
			require.True(t, fault.Is(err, fault.ReasonSandboxLost), "%v", err)
			require.Contains(t, fault.From(err).Message, c.why)
			require.Empty(t, h.leftovers(s.ID))
			require.Less(t, diskUse(t, h.kept(s.ID)), int64(1<<20))
			create(t, h, s)
			out, _, err := h.exec(bounded(t), s.ID, "cat /workspace/mark")
			require.NoError(t, err)
			require.Equal(t, "kept\n", out)
		})
	}
}

// TestTheSpaceOfARootIsBoundedOverStops: what was written before a stop counts behind it, and the host's disk holds it once.
func TestTheSpaceOfARootIsBoundedOverStops(t *testing.T) {
	h := newHost(t, t.TempDir(), func(o *Options) { o.OverlayBytes = 32 << 20 })
	s := spec()
	create(t, h, s)
	fill := "head -c 20000000 /dev/zero | tr '\\0' x > /var/tmp/"
	_, exit, err := h.exec(bounded(t), s.ID, fill+"one")
	require.NoError(t, err)
	require.Zero(t, exit)
	_, err = h.Stop(bounded(t), s.ID)
	require.NoError(t, err)
	require.Less(t, diskUse(t, h.kept(s.ID)), int64(24<<20))
	s.Resume = true
	create(t, h, s)
	_, err = os.Lstat(filepath.Join(h.kept(s.ID), rootDir))
	require.ErrorIs(t, err, os.ErrNotExist)
	out, exit, err := h.exec(bounded(t), s.ID, fill+"two 2>/dev/null || wc -c < /var/tmp/one")
	require.NoError(t, err)
	require.Zero(t, exit)
	require.Equal(t, "20000000", strings.TrimSpace(out), "it is full, and what was there is whole")
}

func diskUse(t *testing.T, dir string) int64 {
	var sum int64
	require.NoError(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		sum += st.Blocks * 512
		return err
	}))
	return sum
}

// BenchmarkStopStart is a stop and the start behind it, until a command works, and until all that was written outside of the workspace has
// been read again.
func BenchmarkStopStart(b *testing.B) {
	for name, write := range map[string]string{
		"nothing": "true",
		"100MB":   "for i in 1 2 3 4 5 6 7 8 9 10; do head -c 10000000 /dev/urandom > /var/tmp/$i; done",
		"files":   "cd /var/tmp; for i in $(seq 20000); do : > $i; done",
	} {
		b.Run(name, func(b *testing.B) { stopStart(b, write) })
	}
}

func stopStart(b *testing.B, write string) {
	h := newHost(b, b.TempDir())
	s := spec()
	create(b, h, s)
	_, exit, err := h.exec(bounded(b), s.ID, write)
	require.NoError(b, err)
	require.Zero(b, exit)
	s.Resume = true
	var stop, start, read time.Duration
	for b.Loop() {
		began := time.Now()
		_, err := h.Stop(bounded(b), s.ID)
		require.NoError(b, err)
		stopped := time.Now()
		_, err = h.Create(bounded(b), s)
		require.NoError(b, err)
		_, _, err = h.exec(bounded(b), s.ID, "true")
		require.NoError(b, err)
		started := time.Now()
		_, _, err = h.exec(bounded(b), s.ID, "find /var/tmp -type f -size +1M -exec cat {} + | wc -c")
		require.NoError(b, err)
		stop, start, read = stop+stopped.Sub(began), start+started.Sub(stopped), read+time.Since(started)
	}
	for name, d := range map[string]time.Duration{"ms/stop": stop, "ms/start": start, "ms/read": read} {
		b.ReportMetric(float64(d.Milliseconds())/float64(b.N), name)
	}
}
