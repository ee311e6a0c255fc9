package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLocate(t *testing.T) {
	v1 := `30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
	g, err := locate(v1, "4:memory:/own/group\n3:cpu,cpuacct:/own\n2:pids:/\n0::/scope\n", "sandtrail/x")
	require.NoError(t, err)
	require.Equal(t, []string{
		"/sys/fs/cgroup/memory/own/group/sandtrail/x", "/sys/fs/cgroup/cpu,cpuacct/own/sandtrail/x",
		"/sys/fs/cgroup/pids/sandtrail/x", "/sys/fs/cgroup/unified/scope/sandtrail/x",
	}, g.dirs())
	require.False(t, g.unified)

	v2 := "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	g, err = locate(v2, "0::/system.slice/sandtrail.service\n", "sandtrail/x")
	require.NoError(t, err)
	require.Equal(t, []string{"/sys/fs/cgroup/system.slice/sandtrail.service/sandtrail/x"}, g.dirs())
	require.True(t, g.unified)

	// In a container the mount shows the container's own group as its root.
	g, err = locate("31 23 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker/abc\n", "x")
	require.NoError(t, err)
	require.Equal(t, []string{"/sys/fs/cgroup/x"}, g.dirs())

	_, err = locate("", "", "x")
	require.Error(t, err)
	for _, name := range []string{"", "../x", "/x", "a/../../x"} {
		_, err := Open(name)
		require.Error(t, err, name)
	}
}

func TestGroup(t *testing.T) {
	parent, err := Open(fmt.Sprintf("sandtrail-test-%d", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, parent.Remove()) })
	g, err := Open(fmt.Sprintf("sandtrail-test-%d/unit", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Remove()) })
	require.NoError(t, g.Create(Limits{MemoryBytes: 64 << 20, CPUMillis: 500, PIDs: 20}))
	require.NoError(t, g.Create(Limits{MemoryBytes: 32 << 20, CPUMillis: 500, PIDs: 20}), "again")

	record := filepath.Join(t.TempDir(), "cgroup.json")
	require.NoError(t, g.Save(record))
	again, err := Load(record)
	require.NoError(t, err)
	require.Equal(t, g, again)

	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read x; x=$(seq 1 20000); while :; do :; done")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for _, procs := range g.Procs() {
		require.NoError(t, os.WriteFile(procs, fmt.Append(nil, cmd.Process.Pid), 0))
	}
	require.Error(t, g.Remove(), "it has a process")
	require.NoError(t, in.Close())
	require.Eventually(t, func() bool { return g.Stats().CPU > 50*time.Millisecond }, 10*time.Second, 5*time.Millisecond)
	require.NotZero(t, again.Stats().MemoryPeak)
	sameWhenKept(t, g, again)
	go cmd.Wait()
	require.NoError(t, again.Kill(5*time.Second))
	require.NoError(t, g.Remove())
	require.NoError(t, g.Remove(), "already gone")
}

// sameWhenKept: files that stay open show what has happened since, as those opened anew do, and are few, and closed with the group.
func sameWhenKept(t *testing.T, g, again *Group) {
	open := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(l)
	}
	before := open()
	g.Keep()
	first := g.Stats().CPU
	for range 100 {
		g.Stats()
		g.FileCache()
		g.OOMKills()
	}
	require.LessOrEqual(t, open(), before+8)
	require.Eventually(t, func() bool { return g.Stats().CPU > first+50*time.Millisecond }, 10*time.Second, 5*time.Millisecond)
	low, kept, high := again.Stats(), g.Stats(), again.Stats()
	require.GreaterOrEqual(t, kept.CPU, low.CPU)
	require.LessOrEqual(t, kept.CPU, high.CPU)
	require.Equal(t, high.MemoryPeak, g.Stats().MemoryPeak)
	require.Equal(t, again.FileCache(), g.FileCache())
	require.Equal(t, g.ResetPeak(), again.ResetPeak())
	g.counters.close()
	require.LessOrEqual(t, open(), before)
}

// Where CPU is scarce groups share it in proportion to what each may have: here two want the same CPU.
func TestScarceCPUIsSharedInProportion(t *testing.T) {
	parent, err := Open(fmt.Sprintf("sandtrail-test-%d", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, parent.Remove()) })
	var groups []*Group
	for name, millis := range map[string]uint32{"small": 1000, "large": 4000} {
		g, err := Open(fmt.Sprintf("sandtrail-test-%d/%s", os.Getpid(), name))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, g.Remove()) })
		require.NoError(t, g.Create(Limits{CPUMillis: millis}))
		cmd := exec.CommandContext(t.Context(), "taskset", "1", "sh", "-c", "while :; do :; done")
		require.NoError(t, g.Start(cmd))
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if groups = append(groups, g); name == "small" && len(groups) == 2 {
			groups[0], groups[1] = groups[1], groups[0]
		}
	}
	began := [2]time.Duration{groups[0].Stats().CPU, groups[1].Stats().CPU}
	used := func(i int) time.Duration { return groups[i].Stats().CPU - began[i] }
	require.Eventually(t, func() bool { return used(0)+used(1) > 3*time.Second }, time.Minute, 10*time.Millisecond)
	small, large := used(0), used(1)
	t.Logf("%s and %s", small, large)
	require.InDelta(t, 4, float64(large)/float64(small), 2)
	held, _ := groups[0].Held()
	require.Zero(t, held, "it wanted no more than it may have")
}

// A group that wants more than it may have is held back, and says how often.
func TestAGroupThatIsHeldBackSaysSo(t *testing.T) {
	parent, err := Open(fmt.Sprintf("sandtrail-test-%d", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, parent.Remove()) })
	g, err := Open(fmt.Sprintf("sandtrail-test-%d/held", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Remove()) })
	require.NoError(t, g.Create(Limits{CPUMillis: 100}))
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	require.NoError(t, g.Start(cmd))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(t, func() bool {
		held, of := g.Held()
		require.LessOrEqual(t, held, of)
		return held > 3
	}, time.Minute, 10*time.Millisecond)
}

func TestTheGroupAboveGoesWithTheLastAndComesWithTheFirst(t *testing.T) {
	name := fmt.Sprintf("sandtrail-test-%d-above", os.Getpid())
	parent, err := Open(name)
	require.NoError(t, err)
	require.NoError(t, parent.RemoveEmpty(), "one that is not there is fine")
	g, err := Open(name + "/unit")
	require.NoError(t, err)
	require.NoError(t, g.Create(Limits{PIDs: 10}))
	require.NoError(t, parent.RemoveEmpty())
	for _, d := range g.dirs() {
		require.DirExists(t, d, "one with a group below it stays")
	}
	require.NoError(t, g.Remove())
	require.NoError(t, parent.RemoveEmpty())
	for _, d := range parent.dirs() {
		require.NoDirExists(t, d)
	}
	// Others take it away while groups are made below it.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = parent.RemoveEmpty()
		}
	}()
	for range 50 {
		require.NoError(t, g.Create(Limits{PIDs: 10}))
		require.NoError(t, g.Remove())
	}
	cancel()
	<-done
	require.NoError(t, parent.RemoveEmpty())
}
