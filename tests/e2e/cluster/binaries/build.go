// Package binaries gets the programs of a Kubernetes node: built from source by the modules below this directory, which stand outside of
// the workspace, or taken from the host's package sources. Each lies in the cache below a digest of what it is made from.
package binaries

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Progress is told each step of a build: what is built, how many packages of about how many are compiled, and the one at hand. It may be nil.
type Progress func(what string, done, total int, note string)

func (p Progress) report(what string, done, total int, note string) {
	if p != nil {
		p(what, done, total, note)
	}
}

// Builder makes programs. The zero value works inside the source tree.
type Builder struct {
	// Cache is the project's cache; empty: $SANDTRAIL_CACHE, else sandtrail below the user's cache directory.
	Cache string
	// Source is the top of the source tree; empty: searched for upwards from the working directory.
	Source   string
	Progress Progress
}

func (b Builder) withDefaults() (Builder, error) {
	var err error
	if b.Cache == "" {
		b.Cache, err = CacheDir()
	} else {
		b.Cache, err = filepath.Abs(b.Cache)
	}
	if err != nil {
		return b, err
	}
	if b.Source == "" {
		b.Source, err = sourceTree()
	}
	return b, err
}

// CacheDir is the project's cache: $SANDTRAIL_CACHE, else sandtrail below the user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("SANDTRAIL_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (set SANDTRAIL_CACHE): %w", err)
	}
	return filepath.Join(dir, "sandtrail"), nil
}

func sourceTree() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("the source tree is not above the working directory: its programs cannot be built")
		}
		dir = filepath.Dir(dir)
	}
}

// program is one result of a group: its path below the group's directory and the package that it is built from.
type program struct{ name, pkg string }

// group is what one module builds with the same flags.
type group struct {
	name     string
	tags     string
	ldflags  string
	vendor   func(dir string) error // changes the vendored sources before the build; part of the key by edition
	edition  string
	static   bool
	compiles int // about how many packages; only the progress depends on it
	programs []program
}

// module is the directory of a group's go.mod below the source tree.
func (g group) module(source string) string {
	return filepath.Join(source, "tests/e2e/cluster/binaries", g.name)
}

// key is a digest of everything that the programs depend on.
func (g group) key(ctx context.Context, source string) (string, error) {
	h := sha256.New()
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("ask Go for its version: %w", err)
	}
	fmt.Fprintln(h, strings.TrimSpace(string(version)), runtime.GOARCH, g.tags, g.ldflags, g.edition, g.static, g.programs)
	files, err := filepath.Glob(filepath.Join(g.module(source), "*"))
	if err != nil {
		return "", err
	}
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		if info.IsDir() {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %x\n", filepath.Base(path), sha256.Sum256(text))
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// get returns the directory that holds the group's programs, built now where the cache has none. Two processes at once build them once.
func (b Builder) get(ctx context.Context, g group) (string, error) {
	key, err := g.key(ctx, b.Source)
	if err != nil {
		return "", err
	}
	return b.made(ctx, g.name+"-"+key, func(dir string) error { return b.build(ctx, g, dir) })
}

// made returns a directory of the cache, filled by fill where it is not there. It appears whole or not at all.
func (b Builder) made(ctx context.Context, name string, fill func(dir string) error) (string, error) {
	dir := filepath.Join(b.Cache, "kubernetes", name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	release, err := lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer release()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := fill(tmp); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	return dir, os.Rename(tmp, dir)
}

// lock waits for the exclusive lock of a file, which the end of the process gives back too.
func lock(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func (b Builder) build(ctx context.Context, g group, to string) error {
	dir, mod := g.module(b.Source), "-mod=readonly"
	if g.vendor != nil {
		vendored, err := b.vendored(ctx, g)
		if err != nil {
			return err
		}
		defer os.RemoveAll(vendored)
		dir, mod = vendored, "-mod=vendor"
	}
	for _, p := range g.programs {
		out := filepath.Join(to, p.name)
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return err
		}
		args := []string{"build", "-v", mod, "-ldflags", g.ldflags, "-tags", g.tags, "-o", out, p.pkg}
		if err := b.run(ctx, g, dir, p.name, g.compiles, args...); err != nil {
			return err
		}
	}
	return nil
}

// vendored is a copy of the module with its dependencies beside it, changed: what lies in the module cache cannot be replaced in place.
func (b Builder) vendored(ctx context.Context, g group) (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(b.Cache, "kubernetes"), ".vendor-")
	if err != nil {
		return "", err
	}
	err = func() error {
		if err := os.CopyFS(dir, os.DirFS(g.module(b.Source))); err != nil {
			return err
		}
		if err := b.run(ctx, g, dir, g.name+": vendor", 0, "mod", "vendor"); err != nil {
			return err
		}
		return g.vendor(filepath.Join(dir, "vendor"))
	}()
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// run runs the go command; its error holds the end of what it said.
func (b Builder) run(ctx context.Context, g group, dir, what string, total int, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The same flags as `go test` has in this project, and cgo as it is there: else client-go, a third of it all, is compiled once more.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false -trimpath", "GOOS=", "GOARCH=", "CGO_ENABLED=")
	if g.static {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	b.Progress.report(what, 0, total, "go "+args[0])
	said := b.follow(stderr, what, total)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, strings.Join(said, "\n"))
	}
	b.Progress.report(what, total, total, "done")
	return nil
}

// follow reports each line and returns the last ones.
func (b Builder) follow(r io.Reader, what string, total int) []string {
	const keep = 30
	var last []string
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		last = append(last, lines.Text())
		last = last[max(0, len(last)-keep):]
		b.Progress.report(what, min(n, total), total, lines.Text())
	}
	return last
}
