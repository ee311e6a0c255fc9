package files

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const (
	// MaxUploads is how many uploads may be unfinished at once. One more is resource_exhausted.
	MaxUploads = 16
	// UploadIdle is how long after its last part an upload is given up.
	UploadIdle = 10 * time.Minute
	// maxDone is how many ended uploads are remembered.
	maxDone = 64

	tempPrefix = ".sandtrail-upload-"
	maxID      = 128
)

// Hidden reports whether a name is that of a file on its way, which nobody else needs to know of.
func Hidden(name string) bool { return strings.HasPrefix(name, tempPrefix) }

// upload is a file on its way: its parts are collected in a temporary file beside the target.
type upload struct {
	mu  sync.Mutex
	dir *os.File
	// base is the target's name in dir, rel its path in the workspace.
	base, rel string
	temp      *os.File
	name      string
	size      int64
	// done is what the last part is answered with.
	done *toolboxv1.WriteFileReply
	// ended: committed or given up.
	ended bool
	// used is guarded by the lock of Files.
	used time.Time
}

type finished struct {
	key   string
	reply *toolboxv1.WriteFileReply
}

// Write takes one part of a file and returns how many bytes of it are here. The file changes at the last part only: at once,
// by a rename, unless it is appended to or reached through a symbolic link in its last component. Missing directories are made.
// A part that is sent again is fine, also the last one. An empty upload id is for a file of one part.
func (f *Files) Write(r *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error) {
	rel, err := f.inside(r.Path)
	if err != nil {
		return nil, err
	}
	switch {
	case rel == ".":
		return nil, notFile()
	case Hidden(path.Base(rel)):
		return nil, invalid("the name is reserved")
	case r.Offset < 0 || len(r.UploadId) > maxID || len(r.FinishId) > maxID || r.Mode > 0o7777 || !validTime(r.ModifiedAt):
		return nil, invalid("offset, upload_id, finish_id, mode or modified_at is out of bounds")
	case r.UploadId == "" && (r.Offset != 0 || !r.Last):
		return nil, invalid("parts need an upload_id")
	case f.options.MaxFile > 0 && r.Offset+int64(len(r.Data)) > f.options.MaxFile:
		return nil, classify(unix.EFBIG)
	}
	key := r.UploadId + "\x00" + rel
	if r.Abort {
		f.giveUp(key)
		return &toolboxv1.WriteFileReply{}, nil
	}
	u, again, err := f.find(key, r, rel)
	if err != nil || again != nil {
		return again, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	finish := ""
	if r.Last && r.FinishId != "" {
		finish = "finish\x00" + r.FinishId + "\x00" + rel
		if done := f.finished(finish); done != nil {
			u.abort()
			f.forget(key, u)
			return done, nil
		}
	}
	err = f.part(u, r)
	var order *orderError
	if errors.As(err, &order) {
		return nil, order.Unwrap()
	}
	if err != nil || r.Last {
		u.abort()
		f.forget(key, u)
	}
	switch {
	case err != nil:
		return nil, err
	case r.Last:
		f.remember(key, u.done)
		if finish != "" {
			f.remember(finish, u.done)
		}
		return u.done, nil
	}
	return &toolboxv1.WriteFileReply{BytesWritten: u.size}, nil
}

// orderError leaves the upload as it is: the caller may send the right part.
type orderError struct{ error }

func (e *orderError) Unwrap() error { return e.error }

// find returns the upload that a part belongs to, or the answer to its last part where it has come to its end before.
func (f *Files) find(key string, r *toolboxv1.WriteFile, rel string) (*upload, *toolboxv1.WriteFileReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.options.Now()
	f.sweep(now)
	if u := f.uploads[key]; u != nil && r.UploadId != "" {
		u.used = now
		return u, nil, nil
	}
	if r.UploadId != "" && r.Last {
		if done := f.finishedLocked(key); done != nil && done.BytesWritten == r.Offset+int64(len(r.Data)) {
			return nil, done, nil
		}
	}
	u := &upload{rel: rel, used: now}
	if r.UploadId == "" {
		return u, nil, nil
	}
	if r.Offset != 0 {
		return nil, nil, wire.NewError("failed_precondition", "illegal_state", "the upload is not known, send it from its beginning")
	}
	if len(f.uploads) >= MaxUploads {
		return nil, nil, wire.NewError("resource_exhausted", "quota", "too many unfinished uploads")
	}
	f.uploads[key] = u
	f.sweepLater()
	return u, nil, nil
}

// sweep gives up the uploads that have been idle for too long. The caller holds the lock.
func (f *Files) sweep(now time.Time) {
	for k, u := range f.uploads {
		if now.Sub(u.used) > UploadIdle && u.mu.TryLock() {
			u.abort()
			u.mu.Unlock()
			delete(f.uploads, k)
		}
	}
}

// sweepLater sees to it that uploads whose sender is gone for good take up the disk no longer than that, whether or not others come. The
// caller holds the lock.
func (f *Files) sweepLater() {
	if f.sweeping != nil || f.closed {
		return
	}
	f.sweeping = time.AfterFunc(UploadIdle+time.Second, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sweeping = nil
		f.sweep(f.options.Now())
		if len(f.uploads) > 0 {
			f.sweepLater()
		}
	})
}

// giveUp drops an upload that is not at work just now; one that is ends by itself, or by its idleness.
func (f *Files) giveUp(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u := f.uploads[key]; u != nil && u.mu.TryLock() {
		u.abort()
		u.mu.Unlock()
		delete(f.uploads, key)
	}
}

// forget drops an upload that has ended.
func (f *Files) forget(key string, u *upload) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uploads[key] == u {
		delete(f.uploads, key)
	}
}

// remember keeps the answer to a last part. An upload without an id cannot be told from another one, and is not remembered.
func (f *Files) remember(key string, reply *toolboxv1.WriteFileReply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if key[0] == 0 {
		return
	}
	f.done = append(f.done, finished{key, reply})
	if len(f.done) > maxDone {
		f.done = slices.Delete(f.done, 0, 1)
	}
}

func (f *Files) finished(key string) *toolboxv1.WriteFileReply {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.finishedLocked(key)
}

func (f *Files) finishedLocked(key string) *toolboxv1.WriteFileReply {
	if i := slices.IndexFunc(f.done, func(d finished) bool { return d.key == key }); i >= 0 {
		return f.done[i].reply
	}
	return nil
}

// part stores one part, and with the last one changes the file. The caller holds the upload's lock.
func (f *Files) part(u *upload, r *toolboxv1.WriteFile) error {
	if u.ended {
		return &orderError{wire.NewError("failed_precondition", "illegal_state", "the upload has ended")}
	}
	if u.temp == nil {
		if err := f.begin(u); err != nil {
			return err
		}
	}
	if r.Offset > u.size {
		return &orderError{invalid("parts must come in order")}
	}
	if _, err := u.temp.WriteAt(r.Data, r.Offset); err != nil {
		return classify(err)
	}
	u.size = max(u.size, r.Offset+int64(len(r.Data)))
	if !r.Last {
		return nil
	}
	// Read back, so that a caller can compare what is there with what it sent.
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(u.temp, 0, u.size)); err != nil {
		return classify(err)
	}
	u.done = &toolboxv1.WriteFileReply{BytesWritten: u.size, Size: u.size, Sha256: sum.Sum(nil)}
	return f.commit(u, r)
}

// begin opens the target's directory and a temporary file in it.
func (f *Files) begin(u *upload) error {
	parent, base := path.Split(u.rel)
	dir, err := f.makeDir(path.Clean(parent))
	if err != nil {
		return err
	}
	u.dir, u.base = dir, base
	if _, _, err := f.target(u); err != nil {
		return err
	}
	var id [8]byte
	rand.Read(id[:])
	name := tempPrefix + hex.EncodeToString(id[:])
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return classify(err)
	}
	u.name, u.temp = name, os.NewFile(uintptr(fd), name)
	return nil
}

// target looks at what is at the path now: nothing (exists false), a regular file, or a link that stays inside. All else is
// refused.
func (f *Files) target(u *upload) (st unix.Stat_t, exists bool, err error) {
	err = unix.Fstatat(int(u.dir.Fd()), u.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		return st, false, nil
	case err != nil:
		return st, false, classify(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return st, true, nil
	case unix.S_IFLNK:
		info, err := f.root.Stat(u.rel)
		switch {
		case errors.Is(err, unix.ENOENT):
			return st, true, nil
		case err != nil:
			return st, false, classify(err)
		case info.Mode().IsRegular():
			return st, true, nil
		}
	}
	return st, false, notFile()
}

// makeDir opens a directory of the workspace, after making what of it is missing.
func (f *Files) makeDir(rel string) (*os.File, error) {
	dir, err := f.openDir(rel)
	if !errors.Is(err, notFound()) {
		return dir, err
	}
	for i, c := range rel {
		if c == '/' {
			if err := f.mkdir(rel[:i]); err != nil {
				return nil, err
			}
		}
	}
	if err := f.mkdir(rel); err != nil {
		return nil, err
	}
	return f.openDir(rel)
}

func (f *Files) mkdir(rel string) error {
	err := f.root.Mkdir(rel, 0o755)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err == nil && f.options.Own {
		err = f.root.Lchown(rel, f.options.UID, f.options.GID)
	}
	return classify(err)
}

// commit makes what was collected the file's content.
func (f *Files) commit(u *upload, r *toolboxv1.WriteFile) error {
	st, exists, err := f.target(u)
	if err != nil {
		return err
	}
	if exists && (r.Append || st.Mode&unix.S_IFMT == unix.S_IFLNK) {
		return f.copyInto(u, r)
	}
	mode := os.FileMode(0o644)
	if exists {
		mode = os.FileMode(st.Mode & 0o777)
	}
	if r.Mode != 0 {
		mode = os.FileMode(r.Mode & 0o777)
	}
	if f.options.Own {
		if err := u.temp.Chown(f.options.UID, f.options.GID); err != nil {
			return classify(err)
		}
	}
	if err := u.temp.Chmod(mode); err != nil {
		return classify(err)
	}
	if r.ModifiedAt != nil {
		if err := setTime(int(u.dir.Fd()), u.name, r.ModifiedAt.AsTime()); err != nil {
			return err
		}
	}
	if err := f.sync(u.temp); err != nil {
		return err
	}
	// The guest may have put something else in the temporary file's place. That is then the target, as if it had put it there.
	dir := int(u.dir.Fd())
	switch err := unix.Renameat(dir, u.name, dir, u.base); err {
	case nil:
		u.name = ""
		return f.sync(u.dir)
	case unix.ENOENT:
		return changed()
	default:
		return classify(err)
	}
}

// copyInto appends to the file, or replaces its content where it lies behind a symbolic link. An append that fails is taken
// back; a replaced file whose disk runs full stays cut.
func (f *Files) copyInto(u *upload, r *toolboxv1.WriteFile) error {
	flags := os.O_WRONLY | os.O_CREATE
	if r.Append {
		flags |= os.O_APPEND
	}
	file, info, err := f.openFile(u.rel, flags)
	if err != nil {
		return err
	}
	defer file.Close()
	if f.options.MaxFile > 0 && r.Append && info.Size()+u.size > f.options.MaxFile {
		return classify(unix.EFBIG)
	}
	// What belongs to this process was made just now, where a link pointed to nothing.
	if st, ok := info.Sys().(*syscall.Stat_t); ok && f.options.Own && int(st.Uid) == os.Geteuid() {
		if err := file.Chown(f.options.UID, f.options.GID); err != nil {
			return classify(err)
		}
	}
	if !r.Append {
		if err := file.Truncate(0); err != nil {
			return classify(err)
		}
	}
	if _, err := io.Copy(file, io.NewSectionReader(u.temp, 0, u.size)); err != nil {
		if r.Append {
			err = errors.Join(err, file.Truncate(info.Size()))
		}
		return classify(err)
	}
	if r.Mode != 0 {
		if err := file.Chmod(os.FileMode(r.Mode & 0o777)); err != nil {
			return classify(err)
		}
	}
	if r.ModifiedAt != nil {
		if err := f.root.Chtimes(u.rel, time.Time{}, r.ModifiedAt.AsTime()); err != nil {
			return classify(err)
		}
	}
	if r.Append {
		u.done.Size = info.Size() + u.size
	}
	return f.sync(file)
}

func (f *Files) sync(file *os.File) error {
	if !f.options.Sync {
		return nil
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("sync: %w", classify(err))
	}
	return nil
}

// abort closes the upload and removes its temporary file where that is still one. It may be called more than once.
func (u *upload) abort() {
	u.ended = true
	if u.temp != nil {
		u.temp.Close()
		u.temp = nil
	}
	if u.dir == nil {
		return
	}
	if u.name != "" {
		// Whatever has that name now: it is a name of ours in the guest's directory. A directory stays.
		_ = unix.Unlinkat(int(u.dir.Fd()), u.name, 0)
	}
	u.dir.Close()
	u.dir = nil
}
