// Package workspace keeps the workspaces of one worker: each an ext4 file system in a sparse file of exactly its size, so that a
// full workspace is a clean ENOSPC inside and nobody else's problem. Where such a file cannot be mounted a workspace is a
// directory, whose size others have to watch. This package mounts nothing.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

const (
	DefaultBytes uint64 = 5 << 30
	MinBytes     uint64 = 16 << 20
	MaxBytes     uint64 = 1 << 40
	// A journal in less than this would take a large part of it.
	journalFrom = 64 << 20
	block       = 4096
	suffix      = ".img"
	poolDir     = ".pool"
)

// Options of a Store.
type Options struct {
	// Dir is STATE/workspaces.
	Dir string
	// UID and GID own the root directory of a workspace, as ids of this host.
	UID, GID uint32
	// Pool is how many empty workspaces of DefaultBytes are kept ready, so that a create only renames one; 0 keeps none. A
	// directory is made as fast as it is renamed: there are none ready then.
	Pool int
	// Directories: workspaces are directories that belong to this process's user. Their size is only remembered.
	Directories bool
	// ReserveBytes of the host's file system must stay free for a create to succeed; default 1 GiB.
	ReserveBytes uint64
	Log          *slog.Logger
}

// Store makes and removes workspaces. It may be used by many goroutines.
type Store struct {
	o    Options
	mu   sync.Mutex
	pool []string
	fill chan struct{}
	stop context.CancelFunc
	done chan struct{}
}

// Open makes the directory, removes what an interrupted create left, and starts to fill the pool. Close ends that.
func Open(o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ReserveBytes == 0 {
		o.ReserveBytes = 1 << 30
	}
	if o.Directories {
		o.Pool = 0
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, poolDir), 0o700); err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	ready, err := filepath.Glob(filepath.Join(o.Dir, poolDir, "*"))
	if err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	// Another owner may be configured now, and a file may be half made: nothing of an earlier pool is taken over.
	for _, path := range ready {
		if err := removeTree(path); err != nil {
			return nil, fmt.Errorf("open workspaces: %w", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{o: o, fill: make(chan struct{}, 1), stop: stop, done: make(chan struct{})}
	go s.keepFull(ctx)
	return s, nil
}

// Close ends the filling of the pool and waits for it.
func (s *Store) Close() {
	s.stop()
	<-s.done
}

// Path is where what a sandbox gets of a workspace lies, an image or a directory, whether or not it exists. id must have passed
// ids.Valid.
func (s *Store) Path(id string) string { return shown(s.place(id)) }

func (s *Store) place(id string) string { return filepath.Join(s.o.Dir, id+s.suffix()) }

func (s *Store) suffix() string {
	if s.o.Directories {
		return dirSuffix
	}
	return suffix
}

// Create makes the workspace and returns Path; size 0 means DefaultBytes, and is rounded up to whole blocks.
// One that exists with that size is returned as it is; with another size it is a conflict. One that is a directory where this
// store makes images, or the other way round, is refused.
func (s *Store) Create(ctx context.Context, id string, size uint64) (string, error) {
	size, err := checkSize(size)
	if err != nil {
		return "", err
	}
	if err := checkID(id); err != nil {
		return "", err
	}
	path := s.place(id)
	if _, err := os.Lstat(path); err == nil {
		return shown(path), sameSize(path, size)
	}
	if err := s.otherKind(id); err != nil {
		return "", err
	}
	from, err := s.empty(ctx, size)
	if err != nil {
		return "", err
	}
	err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		// Another create of the same id was faster.
		_ = removeTree(from)
		return shown(path), sameSize(path, size)
	}
	if err != nil {
		return "", diskFault(fmt.Errorf("create workspace: %w", err))
	}
	return shown(path), nil
}

// empty gives an empty workspace that is nobody's yet.
func (s *Store) empty(ctx context.Context, size uint64) (string, error) {
	if err := s.checkFree(); err != nil {
		return "", err
	}
	if path, ok := s.take(size); ok {
		return path, nil
	}
	path := filepath.Join(s.o.Dir, poolDir, ids.New()+".new")
	return path, s.prepare(ctx, path, size)
}

func (s *Store) prepare(ctx context.Context, path string, size uint64) error {
	if s.o.Directories {
		return prepareDir(path, size)
	}
	return s.format(ctx, path, size)
}

func checkID(id string) error {
	if !ids.Valid(id) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "a workspace id is a UUID in lower case")
	}
	return nil
}

func checkSize(size uint64) (uint64, error) {
	if size == 0 {
		size = DefaultBytes
	}
	if size < MinBytes || size > MaxBytes {
		return 0, fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "a workspace has between %d and %d bytes", MinBytes, MaxBytes)
	}
	return (size + block - 1) / block * block, nil
}

func sameSize(path string, size uint64) error {
	have, err := sizeOf(path)
	if err != nil {
		return diskFault(err)
	}
	if have != size {
		return fault.Newf(fault.Conflict, fault.ReasonConflict, "the workspace exists with %d bytes", have)
	}
	return nil
}

// checkFree looks at the host's disk. Workspaces are sparse and may promise more than there is.
func (s *Store) checkFree() error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.o.Dir, &st); err != nil {
		return diskFault(err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < s.o.ReserveBytes {
		return fault.New(fault.ResourceExhausted, fault.ReasonDiskFull, "the worker's disk is nearly full: delete sandboxes or give it more space")
	}
	return nil
}

func diskFault(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.ResourceExhausted, fault.ReasonDiskFull, "the worker's disk is full: delete sandboxes or give it more space").Because(err)
	}
	return fault.New(fault.Internal, fault.ReasonRuntimeFailed, "the worker could not make the workspace").Because(err)
}

// format makes the file system at path. A file that is there already is of an interrupted attempt.
func (s *Store) format(ctx context.Context, path string, size uint64) (err error) {
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return diskFault(err)
	}
	if err := errors.Join(f.Truncate(int64(size)), f.Close()); err != nil {
		return diskFault(err)
	}
	// The journal stays, so that a crash of the host leaves a file system that mounts; 16 MiB of it are plenty.
	journal := []string{"-J", "size=16"}
	switch {
	case size < journalFrom:
		journal = []string{"-O", "^has_journal"}
	case size < 1<<30:
		journal = []string{"-J", "size=4"}
	}
	args := append([]string{"-q", "-F", "-m", "0", "-b", "4096"}, journal...)
	args = append(args, "-E", fmt.Sprintf("lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=%d:%d", s.o.UID, s.o.GID), path)
	if err := run(ctx, "mkfs.ext4", args...); err != nil {
		return err
	}
	// An empty workspace is empty: mkfs cannot be told to leave this directory out.
	return run(ctx, "debugfs", "-w", "-R", "rmdir lost+found", path)
}

// run runs a program of e2fsprogs, which lies in an sbin that is not always in PATH.
func run(ctx context.Context, program string, args ...string) error {
	path, err := Program(program)
	if err != nil {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonRuntimeFailed, "the worker has no %s: install e2fsprogs there", program).Because(err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return diskFault(fmt.Errorf("%s: %w: %.500s", program, err, out))
	}
	return nil
}

// Program finds a program in PATH or in the directories for administrators.
func Program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// Delete removes a workspace, of whichever kind; one that is not there is no error.
func (s *Store) Delete(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	at := filepath.Join(s.o.Dir, id)
	if err := os.Remove(at + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskFault(err)
	}
	return s.discard(at + dirSuffix)
}

// Exists reports whether there is a workspace of this id, of whichever kind.
func (s *Store) Exists(id string) bool {
	at := filepath.Join(s.o.Dir, id)
	_, image := os.Lstat(at + suffix)
	_, dir := os.Lstat(at + dirSuffix)
	return ids.Valid(id) && (image == nil || dir == nil)
}

// List gives the ids of all workspaces, of both kinds, sorted.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return nil, diskFault(err)
	}
	var all []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if id := strings.TrimSuffix(e.Name(), ext); (ext == suffix || ext == dirSuffix) && ids.Valid(id) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
