// Package keepertest starts real keepers with real sandboxes for tests.
package keepertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	// The binary under test is built from it: a change must run the tests again.
	_ "github.com/sandtrail/sandtrail/toolbox/keeper"
)

// RunscVersion is the version of gVisor that the control protocol was written for.
const RunscVersion = "v0.0.0-20260905035102-160fafc42237"

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
	if path := os.Getenv("SANDTRAIL_RUNSC"); path != "" {
		return path
	}
	dir := filepath.Join(Cache(t), "bin")
	path := filepath.Join(dir, "runsc-"+RunscVersion)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "-ldflags", "-s -w", "gvisor.dev/gvisor/runsc@"+RunscVersion)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+tmp, "GOFLAGS=-mod=mod", "GOWORK=off")
	cmd.Dir = tmp
	run(t, cmd)
	install(t, filepath.Join(tmp, "runsc"), path)
	return path
}

var toolbox struct {
	once sync.Once
	path string
	err  error
}

// Toolbox is the toolbox binary, built once for the test process as a release builds it.
func Toolbox(t testing.TB) string {
	t.Helper()
	toolbox.once.Do(func() {
		dir, err := os.MkdirTemp("", "toolbox")
		if err != nil {
			toolbox.err = err
			return
		}
		toolbox.path = filepath.Join(dir, "toolbox")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", toolbox.path,
			"github.com/sandtrail/sandtrail/toolbox/cmd/toolbox")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			toolbox.err = fmt.Errorf("%w: %s", err, out)
		}
		// The directory is as 0700 as MkdirTemp makes it; the guest's ids must reach the binary.
		if err := os.Chmod(dir, 0o755); err != nil {
			toolbox.err = err
		}
	})
	require.NoError(t, toolbox.err)
	return toolbox.path
}

// Rootfs is a small image: a static busybox with its applets, from the distribution's package.
func Rootfs(t testing.TB) string {
	t.Helper()
	root := filepath.Join(Cache(t), "images", "busybox-2")
	if _, err := os.Stat(filepath.Join(root, "etc/passwd")); err == nil {
		return root
	}
	tmp := t.TempDir()
	get := exec.CommandContext(t.Context(), "apt-get", "download", "busybox-static")
	get.Dir = tmp
	run(t, get)
	packages, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	require.NoError(t, err)
	require.Len(t, packages, 1)
	run(t, exec.CommandContext(t.Context(), "dpkg-deb", "-x", packages[0], filepath.Join(tmp, "x")))
	for _, dir := range []string{"bin", "etc", "tmp", "proc", "sys", "dev", "root", "workspace"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	install(t, filepath.Join(tmp, "x/bin/busybox"), filepath.Join(root, "bin/busybox"))
	list, err := exec.CommandContext(t.Context(), filepath.Join(root, "bin/busybox"), "--list").Output()
	require.NoError(t, err)
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			_ = os.Symlink("busybox", filepath.Join(root, "bin", applet))
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/tmp"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(root, "var/tmp"), 0o777|os.ModeSticky))
	users := "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/workspace:/bin/sh\n"
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(users), 0o644))
	return root
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
