package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Version of the npm package @chdb/lib-linux-x64-gnu. Earlier ones, the tag latest among them, cannot serve.
const Version = "26.7.3-stable.1"

const (
	packageName = "@chdb/lib-linux-x64-gnu"
	// integrity is what npm must find in the tarball, whatever the registry says.
	integrity = "sha512-XP97mMqnc5tZpKQywR8N7cLTsHNiTmHr30pC5mzo3jWmukjKn2IBa60c2B/gWUNcuFjOMjWoorQICCqBVj5wpw=="
)

// libraryPath is where the library stands in a cache directory.
func libraryPath(cacheDir string) string {
	return filepath.Join(cacheDir, "chdb", Version, "node_modules", packageName, "libchdb.so")
}

// Prepare gets the engine's library (178 MB to fetch, 566 MB on disk) into cacheDir, unless it is there, and returns its
// path. Several processes may call it at once: one fetches, the others wait. progress gets one line for each step and may
// be nil. fault.FailedPrecondition where this machine cannot run it or has no npm.
func Prepare(ctx context.Context, cacheDir string, progress func(string)) (string, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fault.Newf(fault.FailedPrecondition, fault.ReasonValidation,
			"the built-in ClickHouse runs on linux/amd64 only, this is %s/%s: give the address of a server with --clickhouse clickhouse://user:password@host:9000",
			runtime.GOOS, runtime.GOARCH)
	}
	lib := libraryPath(cacheDir)
	if present(lib) {
		return lib, nil
	}
	if progress == nil {
		progress = func(string) {}
	}
	parent := filepath.Join(cacheDir, "chdb")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	lock, err := lockFile(ctx, filepath.Join(parent, "lock"), time.Hour)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if present(lib) {
		return lib, nil
	}
	progress("getting ClickHouse " + Version + " (178 MB) with npm")
	start := time.Now()
	if err := fetch(ctx, parent); err != nil {
		return "", err
	}
	progress(fmt.Sprintf("got ClickHouse %s in %s", Version, time.Since(start).Round(time.Second/10)))
	return lib, nil
}

func present(lib string) bool {
	_, err := os.Stat(lib)
	return err == nil
}

// fetch installs the package beside its final place and moves it there whole, so that a killed fetch leaves nothing that looks
// finished. npm checks the pinned integrity because it stands in the lock file.
func fetch(ctx context.Context, parent string) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return fault.New(fault.FailedPrecondition, fault.ReasonValidation,
			"npm is needed once to get the built-in ClickHouse: install npm, or give the address of a server with --clickhouse").Because(err)
	}
	dir, err := os.MkdirTemp(parent, "fetch-")
	if err != nil {
		return fmt.Errorf("make fetch directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	deps := fmt.Sprintf(`"dependencies":{%q:%q}`, packageName, Version)
	files := map[string]string{
		"package.json": fmt.Sprintf(`{"name":"sandtrail-engine","private":true,%s}`, deps),
		"package-lock.json": fmt.Sprintf(`{"name":"sandtrail-engine","lockfileVersion":3,"requires":true,"packages":{"":{"name":"sandtrail-engine",%s},`+
			`"node_modules/%s":{"version":%q,"integrity":%q,"cpu":["x64"],"os":["linux"]}}}`, deps, packageName, Version, integrity),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fault.Newf(fault.Unavailable, fault.ReasonInternal, "npm could not get %s@%s: %s", packageName, Version, firstLine(out.String())).Because(err)
	}
	if !present(filepath.Join(dir, "node_modules", packageName, "libchdb.so")) {
		return fault.Newf(fault.Unavailable, fault.ReasonInternal, "%s@%s has no libchdb.so", packageName, Version)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("open the fetch directory: %w", err)
	}
	final := filepath.Join(parent, Version)
	// What stands there without the library is of no use, and in the way of the rename.
	if err := os.RemoveAll(final); err != nil {
		return fmt.Errorf("remove a broken %s: %w", final, err)
	}
	if err := os.Rename(dir, final); err != nil {
		return fmt.Errorf("move the library into the cache: %w", err)
	}
	return nil
}

// firstLine is the first line that npm printed as an error, at most 300 bytes.
func firstLine(out string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return line[:min(len(line), 300)]
}

// errLocked: somebody else holds the lock.
var errLocked = errors.New("locked by another process")

// lockFile takes an exclusive lock on path and waits up to patience for it; errLocked after that. The lock lives as long as
// any process has the file open.
func lockFile(ctx context.Context, path string, patience time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !time.Now().Before(deadline) {
			_ = f.Close()
			return nil, errLocked
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// CacheDir is where downloads stand unless a caller says otherwise: SANDTRAIL_CACHE, or sandtrail in the user's cache.
func CacheDir() (string, error) {
	if dir := os.Getenv("SANDTRAIL_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fault.New(fault.FailedPrecondition, fault.ReasonValidation,
			"there is no cache directory: set SANDTRAIL_CACHE or HOME").Because(err)
	}
	return filepath.Join(dir, "sandtrail"), nil
}
