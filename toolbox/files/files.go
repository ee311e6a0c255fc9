// Package files reads, writes and lists the files of a workspace from outside the sandbox, while hostile code inside changes
// it. Everything is reached through an os.Root or by single names in an open directory, so that no symbolic link, however
// quickly swapped, leads out. Links that stay inside work; absolute ones count as leading out, since they name a place of the
// guest's file system and not of the workspace. Only regular files are opened for their content.
package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

const (
	// MaxPart is the most bytes of one ReadFile answer. It leaves room in a message of 1 MiB.
	MaxPart = 512 << 10
	// maxPath is what Linux allows.
	maxPath = 4096
)

// Options of a workspace.
type Options struct {
	// Dir is the workspace on the host.
	Dir string
	// MountPath is where the guest sees it, e.g. /workspace. Absolute paths below it are taken as paths in the workspace.
	MountPath string
	// UID and GID own what is written, as host ids. With Own false, files belong to the process itself.
	UID, GID int
	Own      bool
	// MaxFile is the most bytes of an uploaded file; 0: as many as the disk has.
	MaxFile int64
	// Sync waits for the disk before a write is answered.
	Sync bool
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Files is one open workspace. Its methods may be called concurrently. Errors are *wire.Error, except those of a broken disk.
type Files struct {
	options Options
	root    *os.Root

	mu      sync.Mutex
	uploads map[string]*upload
	// done are the last uploads that came to an end, the oldest first: a repeated last part is answered and not written again.
	done []finished
	// sweeping ends uploads whose sender is gone; nil where there are none.
	sweeping *time.Timer
	closed   bool
}

// Open opens the workspace.
func Open(o Options) (*Files, error) {
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.MountPath = path.Clean("/" + o.MountPath)
	return &Files{options: o, root: root, uploads: map[string]*upload{}}, nil
}

// Close drops unfinished uploads and closes the workspace.
func (f *Files) Close() error {
	f.mu.Lock()
	open := f.uploads
	f.uploads, f.closed = map[string]*upload{}, true
	if f.sweeping != nil {
		f.sweeping.Stop()
	}
	f.mu.Unlock()
	// A part under way locks its upload first and Files after it, so never the other way round.
	for _, u := range open {
		u.mu.Lock()
		u.abort()
		u.mu.Unlock()
	}
	return f.root.Close()
}

// inside is the path in the workspace: clean, relative, "." for the workspace itself.
func (f *Files) inside(p string) (string, error) {
	if len(p) > maxPath || strings.ContainsRune(p, 0) {
		return "", invalid("the path is not a valid one")
	}
	// Not resolved by its text: behind a symbolic link ".." is another directory than the text says.
	if slices.Contains(strings.Split(p, "/"), "..") {
		return "", escapes()
	}
	clean := path.Clean("/" + p)
	if !strings.HasPrefix(p, "/") {
		return strings.TrimPrefix(cmp.Or(clean[1:], "."), "/"), nil
	}
	if clean == f.options.MountPath {
		return ".", nil
	}
	rel, ok := strings.CutPrefix(clean, strings.TrimSuffix(f.options.MountPath, "/")+"/")
	if !ok {
		return "", escapes()
	}
	return rel, nil
}

// openFile opens a regular file. Opening a FIFO does not wait for its other end, and what turns out to be none is closed again.
func (f *Files) openFile(rel string, flags int) (*os.File, os.FileInfo, error) {
	file, err := f.root.OpenFile(rel, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o644)
	if err != nil {
		return nil, nil, classify(err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		err = classify(err)
	case !info.Mode().IsRegular():
		err = notFile()
	default:
		return file, info, nil
	}
	file.Close()
	return nil, nil, err
}

// openDir opens a directory.
func (f *Files) openDir(rel string) (*os.File, error) {
	dir, err := f.root.OpenFile(rel, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, classify(err)
	}
	return dir, nil
}

// Read returns up to max_bytes from offset on, at most MaxPart; 0 asks for MaxPart. Behind the end it is empty with eof.
func (f *Files) Read(r *toolboxv1.ReadFile) (*toolboxv1.ReadFileReply, error) {
	if r.Offset < 0 || r.MaxBytes < 0 {
		return nil, invalid("offset and max_bytes must not be negative")
	}
	rel, err := f.inside(r.Path)
	if err != nil {
		return nil, err
	}
	file, info, err := f.openFile(rel, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	n := int64(MaxPart)
	if r.MaxBytes > 0 {
		n = min(n, r.MaxBytes)
	}
	n = max(0, min(n, info.Size()-r.Offset))
	data := make([]byte, n)
	got, err := file.ReadAt(data, r.Offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, classify(err)
	}
	// Less than the size said: the guest cut the file meanwhile.
	eof := errors.Is(err, io.EOF) || r.Offset+int64(got) >= info.Size()
	reply := &toolboxv1.ReadFileReply{Data: data[:got], TotalSize: info.Size(), Eof: eof}
	reply.Version, reply.Unsettled = f.version(info)
	return reply, nil
}
