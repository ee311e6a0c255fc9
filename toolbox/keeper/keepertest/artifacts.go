// Package keepertest starts real keepers with real sandboxes for tests.
package keepertest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	// The binary under test is built from it: a change must run the tests again.
	_ "github.com/sandtrail/sandtrail/toolbox/keeper"
)

// RunscVersion is the version of gVisor that the control protocol was written for.
const RunscVersion = "v0.0.0-20260905035102-160fafc42237"

const runscPackage = "gvisor.dev/gvisor/runsc"

// Cache is where downloads and builds are kept.
func Cache(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SANDTRAIL_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		require.NoError(t, err)
		dir = filepath.Join(user, "sandtrail")
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return dir
}

// Runsc is the gVisor binary: SANDTRAIL_RUNSC, or one in the cache, built there on first use, which takes minutes.
func Runsc(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: real sandboxes")
	}
	if path := os.Getenv("SANDTRAIL_RUNSC"); path != "" {
		return path
	}
	dir := filepath.Join(Cache(t), "bin")
	path := filepath.Join(dir, "runsc-"+RunscVersion)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "install", "-trimpath",
		"-ldflags", "-s -w -X "+runscPackage+"/version.version="+RunscVersion, runscPackage+"@"+RunscVersion)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+tmp, "GOFLAGS=-mod=mod", "GOWORK=off")
	cmd.Dir = tmp
	run(t, cmd)
	install(t, filepath.Join(tmp, "runsc"), path)
	return path
}

// program is a binary of ours, built once for the test process.
type program struct {
	once sync.Once
	path string
	err  error
}

var toolbox, agent program

// Toolbox is the toolbox binary, built as a release builds it. It lies in the cache under the digest of its content, so that test
// processes at once do not disturb one another; those of more than a day ago are removed.
func Toolbox(t testing.TB) string { return toolbox.get(t, "toolbox") }

// AgentBinary is the agent of a pod, the same way.
func AgentBinary(t testing.TB) string { return agent.get(t, "agent") }

func (p *program) get(t testing.TB, name string) string {
	t.Helper()
	p.once.Do(func() { p.path, p.err = build(t, name) })
	require.NoError(t, p.err)
	return p.path
}

func build(t testing.TB, name string) (string, error) {
	built := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", built,
		"github.com/sandtrail/sandtrail/toolbox/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	b, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(Cache(t), "test-"+name)
	old, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return "", err
	}
	for _, path := range old {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(path)
		}
	}
	path := filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256(b)))
	install(t, built, path)
	return path, nil
}

// Rootfs is a small image: a static busybox with its applets, from the distribution's package.
func Rootfs(t testing.TB) string {
	t.Helper()
	images := filepath.Join(Cache(t), "images")
	root := filepath.Join(images, "busybox-3")
	if _, err := os.Stat(root); err == nil {
		return root
	}
	require.NoError(t, os.MkdirAll(images, 0o755))
	tmp, err := os.MkdirTemp(images, ".busybox")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(tmp)) }()
	made := filepath.Join(tmp, "root")
	for _, dir := range []string{"bin", "etc", "tmp", "proc", "sys", "dev", "root", "workspace", "var/tmp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(made, dir), 0o755))
	}
	run(t, exec.CommandContext(t.Context(), "dpkg-deb", "-x", download(t, filepath.Join(tmp, "apt"), "busybox-static"), filepath.Join(tmp, "x")))
	busybox, err := filepath.EvalSymlinks(filepath.Join(tmp, "x/bin/busybox"))
	if err != nil {
		busybox = filepath.Join(tmp, "x/usr/bin/busybox")
	}
	install(t, busybox, filepath.Join(made, "bin/busybox"))
	list, err := exec.CommandContext(t.Context(), filepath.Join(made, "bin/busybox"), "--list").Output()
	require.NoError(t, err)
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			_ = os.Symlink("busybox", filepath.Join(made, "bin", applet))
		}
	}
	require.NoError(t, os.Chmod(filepath.Join(made, "var/tmp"), 0o777|os.ModeSticky))
	users := "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/workspace:/bin/sh\n"
	require.NoError(t, os.WriteFile(filepath.Join(made, "etc/passwd"), []byte(users), 0o644))
	// Whoever is first wins: a second one cannot replace a directory that has files.
	if err := os.Rename(made, root); err != nil {
		require.DirExists(t, root)
	}
	return root
}

// download fetches one package by the host's sources with lists of its own below dir: those of a fresh host are empty.
func download(t testing.TB, dir, name string) string {
	t.Helper()
	for _, sub := range []string{"lists/partial", "archives/partial"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	options := []string{"-qq", "-o", "Dir::State::lists=" + dir + "/lists", "-o", "Dir::Cache=" + dir, "-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none"}
	for _, args := range [][]string{{"update"}, {"download", name}} {
		get := exec.CommandContext(t.Context(), "apt-get", append(slices.Clone(options), args...)...)
		get.Dir = dir
		run(t, get)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	require.NoError(t, err)
	require.Len(t, packages, 1)
	return packages[0]
}

// install copies an executable so that it is whole when it appears.
func install(t testing.TB, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	tmp, err := os.CreateTemp(filepath.Dir(to), ".install")
	require.NoError(t, err)
	_, err = tmp.Write(b)
	require.NoError(t, err)
	require.NoError(t, tmp.Chmod(0o755))
	require.NoError(t, tmp.Close())
	require.NoError(t, os.Rename(tmp.Name(), to))
}

func run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", cmd, out)
}
