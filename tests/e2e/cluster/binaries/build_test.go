package binaries

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func source(t *testing.T) string {
	t.Helper()
	dir, err := sourceTree()
	require.NoError(t, err)
	return dir
}

func TestAKeyFollowsEverythingThatAProgramDependsOn(t *testing.T) {
	tree := t.TempDir()
	module := filepath.Join(tree, "tests/e2e/cluster/binaries/x")
	require.NoError(t, os.MkdirAll(module, 0o755))
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(text), 0o644))
	}
	base := group{name: "x", programs: []program{{"x", "."}}}
	key := func(g group) string {
		t.Helper()
		k, err := g.key(t.Context(), tree)
		require.NoError(t, err)
		return k
	}
	write("go.mod", "module x\n")
	seen := map[string]string{key(base): "as it is"}
	require.Equal(t, "as it is", seen[key(base)], "the same twice")
	differs := func(what string, g group) {
		t.Helper()
		k := key(g)
		require.NotContains(t, seen, k, "%s is as %s", what, seen[k])
		seen[k] = what
	}
	for what, change := range map[string]func(*group){
		"tags": func(g *group) { g.tags = "a" }, "flags": func(g *group) { g.ldflags = "-s" }, "edition": func(g *group) { g.edition = "2" },
		"static": func(g *group) { g.static = true }, "programs": func(g *group) { g.programs = []program{{"y", "."}} },
	} {
		g := base
		change(&g)
		differs(what, g)
	}
	for _, file := range []string{"go.mod", "go.sum", "main.go"} {
		write(file, "// "+file)
		differs(file, base)
	}
}

func TestWhatIsMadeAppearsWholeAndOnce(t *testing.T) {
	b := Builder{Cache: t.TempDir()}
	_, err := b.made(t.Context(), "x", func(dir string) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o644), errors.New("no more"))
	})
	require.ErrorContains(t, err, "no more")
	require.NoDirExists(t, filepath.Join(b.Cache, "kubernetes/x"))
	left, err := filepath.Glob(filepath.Join(b.Cache, "kubernetes/.making-*"))
	require.NoError(t, err)
	require.Empty(t, left)

	var times atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			dir, err := b.made(context.Background(), "x", func(dir string) error {
				times.Add(1)
				return os.WriteFile(filepath.Join(dir, "f"), []byte("whole"), 0o644)
			})
			if text, failed := os.ReadFile(filepath.Join(dir, "f")); err != nil || failed != nil || string(text) != "whole" {
				t.Errorf("%s: %v %v %q", dir, err, failed, text)
			}
		})
	}
	all.Wait()
	require.Equal(t, int64(1), times.Load())
}

func TestABuildThatFailsSaysWhatTheCompilerSaid(t *testing.T) {
	tree := t.TempDir()
	module := filepath.Join(tree, "tests/e2e/cluster/binaries/x")
	require.NoError(t, os.MkdirAll(module, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(module, "go.mod"), []byte("module x\n\ngo 1.26\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() { missing() }\n"), 0o644))
	b := Builder{Cache: t.TempDir(), Source: tree}
	_, err := b.get(t.Context(), group{name: "x", static: true, programs: []program{{"x", "."}}})
	require.ErrorContains(t, err, "undefined: missing")

	require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() { println(\"built\") }\n"), 0o644))
	var told []string
	b.Progress = func(what string, _, _ int, note string) { told = append(told, what+": "+note) }
	dir, err := b.get(t.Context(), group{name: "x", static: true, programs: []program{{"x", "."}}})
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "x")).CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "built\n", string(out))
	require.Contains(t, told, "x: done")
	told = nil
	again, err := b.get(t.Context(), group{name: "x", static: true, programs: []program{{"x", "."}}})
	require.NoError(t, err)
	require.Equal(t, dir, again)
	require.Empty(t, told, "what is there is not built again")
}

func TestTheShimsPatchFitsOrIsRefused(t *testing.T) {
	vendor := t.TempDir()
	path := filepath.Join(vendor, "github.com/containerd/containerd/v2/pkg/sys/oom_linux.go")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("package sys\n\nimport \"os\"\n"), 0o644))
	require.Error(t, passOverOOMScore(vendor))

	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/containerd/containerd/v2")
	list.Dir, list.Env = shim().module(source(t)), append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := list.Output()
	require.NoError(t, err)
	real, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "pkg/sys/oom_linux.go"))
	if errors.Is(err, os.ErrNotExist) {
		t.Log("containerd is not in the module cache: the next build of the shim tells")
		return
	}
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, real, 0o644))
	require.NoError(t, passOverOOMScore(vendor))
	patched, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(patched), "if os.IsPermission(err) {\n")
	require.NotContains(t, string(patched), "userns")
}

func TestProgramsOfPackagesRunFromTheCache(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: fetches packages")
	}
	b, err := Builder{Source: source(t)}.withDefaults()
	require.NoError(t, err)
	dir, err := b.packages(t.Context())
	require.NoError(t, err)
	lib := filepath.Join(dir, "lib")
	for _, argv := range [][]string{{"runc", "--version"}, {"busybox", "true"}, {"iptables", "--version"}, {"iptables-save", "--version"}, {"ipset", "version"}, {"conntrack", "--version"}} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", argv[0]), argv[1:]...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib, "XTABLES_LIBDIR="+filepath.Join(lib, "xtables"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", argv, out)
	}
}
