package node_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/node"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st-node-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func up(t *testing.T, o node.Options) (*node.Node, *process.Remote) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: namespaces and cgroups of the host")
	}
	n, err := node.Up(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Down(context.Background())) })
	return n, process.Dial(n.Socket())
}

func TestANodeIsAMachineOfItsOwn(t *testing.T) {
	_, inside := up(t, node.Options{Dir: directory(t), Path: []string{"/nowhere"}, Env: []string{"MARK=x y"}})
	run := func(script string) string {
		t.Helper()
		out, err := inside.Run(t.Context(), "sh", "-c", script)
		require.NoError(t, err)
		return strings.TrimSpace(out)
	}
	require.Equal(t, node.Name, run("cat /proc/sys/kernel/hostname"))
	require.NotEqual(t, node.Name, host(t, "/proc/sys/kernel/hostname"))
	require.Equal(t, "x y /nowhere", run(`echo "$MARK ${PATH%%:*}"`))
	require.Equal(t, "1", run("ls -d /proc/[0-9]* | grep -cx /proc/1"), "processes start at one")
	for line := range strings.Lines(run("cat /proc/self/cgroup")) {
		path := strings.TrimSpace(line[strings.LastIndex(line, ":")+1:])
		require.Contains(t, []string{"/", "/programs"}, path, "the node's groups are the roots of what it sees")
	}
	require.Equal(t, "1", run("{ mkdir /sys/fs/cgroup/pids/below 2>/dev/null || mkdir /sys/fs/cgroup/below; } && echo 1"), "it makes groups below them")

	for name, value := range map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10"} {
		before := host(t, "/proc/sys/"+name)
		require.Equal(t, value, run("cat /proc/sys/"+name))
		run("echo " + value + "7 > /proc/sys/" + name)
		require.Equal(t, before, host(t, "/proc/sys/"+name), "%s is the machine's", name)
	}
	require.Equal(t, "1", run("cat /proc/sys/net/ipv4/ip_forward"))
	require.Empty(t, run("ls -A /var/lib; ls -A /run"))
}

func host(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.TrimSpace(string(text))
}

func TestHostAndNodeReachOneAnother(t *testing.T) {
	n, inside := up(t, node.Options{Dir: directory(t)})
	l, err := net.Listen("tcp", netip.AddrPortFrom(n.HostAddress, 0).String())
	require.NoError(t, err)
	defer l.Close()
	said := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			said <- err.Error()
			return
		}
		defer c.Close()
		b := make([]byte, 3)
		_, err = c.Read(b)
		said <- fmt.Sprint(string(b), " ", c.RemoteAddr().(*net.TCPAddr).IP, " ", err)
	}()
	_, err = inside.Run(t.Context(), "bash", "-c", fmt.Sprintf("echo yes > /dev/tcp/%s/%d", n.HostAddress, l.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint("yes ", n.Address, " <nil>"), <-said)
	out, err := exec.CommandContext(t.Context(), "ip", "route", "get", n.Pods.Addr().Next().String()).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "via "+n.Address.String())
}

func TestProgramsOfANodeAreReapedAndSeenFromOutside(t *testing.T) {
	dir := directory(t)
	_, inside := up(t, node.Options{Dir: dir})
	log := filepath.Join(dir, "p.log")
	require.NoError(t, inside.Start(t.Context(), process.Spec{Name: "p", Argv: []string{"sh", "-c", "echo $MARK; (sleep 0.01 &) ; exec sleep 1000"}, Env: []string{"MARK=m"}, Log: log}))
	require.Eventually(t, func() bool { return host(t, log) == "m" }, time.Minute, 10*time.Millisecond)
	all, err := inside.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.True(t, all[0].Running)
	require.Eventually(t, func() bool {
		out, err := inside.Run(t.Context(), "sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l")
		return err == nil && strings.TrimSpace(out) == "0"
	}, time.Minute, 50*time.Millisecond, "the orphan is reaped")
	_, err = inside.Run(t.Context(), "sh", "-c", "echo said; exit 3")
	require.ErrorContains(t, err, "said")
}

func TestDownLeavesNothingAndASecondDownIsFine(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: namespaces and cgroups of the host")
	}
	dir := directory(t)
	n, err := node.Up(t.Context(), node.Options{Dir: dir, Keep: true})
	require.NoError(t, err)
	found, err := node.Open(dir)
	require.NoError(t, err)
	require.Equal(t, n, found)
	require.NotEmpty(t, n.Cgroups)
	require.NoError(t, n.Down(t.Context()))
	for _, group := range n.Cgroups {
		require.NoDirExists(t, group)
	}
	_, err = net.InterfaceByName(n.Link)
	require.Error(t, err)
	_, err = node.Open(dir)
	require.ErrorIs(t, err, node.ErrNotRunning)
	require.NoError(t, n.Down(t.Context()))
}

func TestANodeLivesAsLongAsItsMakerAndNoLess(t *testing.T) {
	n, inside := up(t, node.Options{Dir: directory(t)})
	// A file that nobody names is closed by the second round at the latest.
	for range 3 {
		runtime.GC()
	}
	require.Never(t, func() bool { _, err := inside.Status(context.Background()); return err != nil }, 300*time.Millisecond, 20*time.Millisecond)
	_, err := node.Open(n.Dir)
	require.NoError(t, err)
}

func TestTwoNodesAtOnceHaveTheirOwnNetworks(t *testing.T) {
	a, _ := up(t, node.Options{Dir: directory(t)})
	b, _ := up(t, node.Options{Dir: directory(t)})
	require.NotEqual(t, a.Pods, b.Pods)
	require.NotEqual(t, a.Address, b.Address)
	require.NotEqual(t, a.Services, b.Services)
}

func TestADirectoryThatTheNodeHidesIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: namespaces and cgroups of the host")
	}
	for _, dir := range []string{"/run/x", "/var/lib/x"} {
		_, err := node.Up(t.Context(), node.Options{Dir: dir})
		require.ErrorContains(t, err, dir)
	}
}
