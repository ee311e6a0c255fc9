// Package prepare gets the programs that the gVisor driver needs: runsc and the static toolbox binary. What it builds lies in
// the cache directory under a name that holds its version, so that a second call finds it.
package prepare

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Progress is told how far a long step is. total is 0 while it is not known; note is one short line, never a secret. It may be
// nil wherever it is taken, and is never called from two goroutines at once.
type Progress func(stage string, done, total int64, note string)

// Report calls p unless it is nil.
func (p Progress) Report(stage string, done, total int64, note string) {
	if p != nil {
		p(stage, done, total, note)
	}
}

// Options of a preparation. Everything has a default.
type Options struct {
	// CacheDir holds what is built or fetched once for a user; default CacheDir().
	CacheDir string
	// Runsc and Toolbox are paths of binaries to use and nothing else.
	Runsc   string
	Toolbox string
	// Source is the top of the source tree, used when the toolbox has to be built. Default: searched for upwards from the
	// working directory and from the executable.
	Source   string
	Progress Progress
	Log      *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CacheDir != "" {
		return o, nil
	}
	var err error
	o.CacheDir, err = CacheDir()
	return o, err
}

// CacheDir is $SANDTRAIL_CACHE, else sandtrail below the user's cache directory.
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

// Lock takes the exclusive lock of a path, made when absent, and waits for it until ctx ends. It holds against other processes
// and other callers of this one. release gives it back; the file stays.
func Lock(ctx context.Context, path string) (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := lockFile(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// lockFile polls, because a blocking flock cannot be given up when ctx ends.
func lockFile(ctx context.Context, f *os.File) error {
	wait := newPoll(ctx)
	defer wait.stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err := wait.next(); err != nil {
			return err
		}
	}
}

// install moves a finished file to its place, so that no other process sees a half-written one.
func install(from, to string) error {
	if err := os.Chmod(from, 0o755); err != nil {
		return fmt.Errorf("install %s: %w", to, err)
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// checkStatic refuses a program that needs a loader: a copy of it could not run in a guest.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s is no program for this system: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically; build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}

// tail keeps the last bytes written to it: enough of a build's output to say why it failed.
type tail struct{ b []byte }

const tailBytes = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

var _ io.Writer = (*tail)(nil)

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist) && err == nil
}
