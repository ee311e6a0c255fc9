package changes

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Main writes what was changed to standard output. It is the whole of a process.
func Main() int {
	// The programs of the sandbox shall have the memory and the threads.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	if err := Write(os.Stdout, os.Stdin, "/"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return ExitFailed
	}
	return 0
}

// Write writes the tar of what is other at root than the index says. Sockets and what lies on other file systems are left out, and so are names
// that begin as whiteouts do. A file that grows or shrinks meanwhile has the size that it had when it was opened.
func Write(out io.Writer, in io.Reader, root string) error {
	x := index{bufio.NewReaderSize(in, 64<<10)}
	except, err := x.except()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return fmt.Errorf("the root: %w", err)
	}
	buffered := bufio.NewWriterSize(out, 256<<10)
	w := &walker{
		index: x, except: except, root: strings.TrimSuffix(root, "/"), dev: st.Dev, out: tar.NewWriter(buffered), links: map[inode]string{},
	}
	if err := w.dir("/", true, false); err != nil {
		return err
	}
	if err := w.out.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

type inode struct{ dev, ino uint64 }

type walker struct {
	index  index
	except map[string]bool
	root   string
	dev    uint64
	out    *tar.Writer
	// links are files of more than one name that were written, by the first of them.
	links map[inode]string
}

// found is an entry of a directory as it is now.
type found struct {
	stat unix.Stat_t
	old  entry
	// known: the image has it. same: and it is as it was there.
	known, same bool
}

func (f found) dir() bool { return f.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// dir writes what is other in a directory. known: the index has it, and is about to tell of it; same: it is as it was itself.
func (w *walker) dir(at string, known, same bool) error {
	var old []entry
	if known {
		var err error
		if old, err = w.index.directory(); err != nil {
			return err
		}
	}
	all, err := os.ReadDir(w.root + at)
	switch {
	case errors.Is(err, fs.ErrPermission) && same:
		// Whoever may not read it has changed nothing in it: it would not be as it was.
		return w.index.skipIn(old)
	case errors.Is(err, fs.ErrNotExist):
		return w.index.skipIn(old)
	case err != nil:
		return unreadable(at, err)
	}
	return w.merge(at, all, old)
}

// merge goes through the names of both in their order: first what stands in the directory itself, then what is below.
func (w *walker) merge(at string, all []fs.DirEntry, old []entry) error {
	now := map[string]found{}
	var below []string
	was := map[string]entry{}
	for _, e := range old {
		was[e.name] = e
	}
	for _, e := range all {
		f, ok, err := w.look(path.Join(at, e.Name()), was)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		now[e.Name()] = f
		if !f.same {
			if err := w.entry(path.Join(at, e.Name()), f.stat); err != nil {
				return err
			}
		}
		if f.dir() && !(f.known && f.old.dir) {
			below = append(below, e.Name())
		}
	}
	for _, e := range old {
		if _, ok := now[e.name]; ok || w.hidden(path.Join(at, e.name)) {
			continue
		}
		if err := w.gone(at, e.name); err != nil {
			return err
		}
	}
	// In the order of the index: it tells of a directory only once.
	for _, e := range old {
		if !e.dir {
			continue
		}
		next := w.index.skip
		if f, ok := now[e.name]; ok && f.dir() {
			next = func() error { return w.dir(path.Join(at, e.name), true, f.same) }
		}
		if err := next(); err != nil {
			return err
		}
	}
	for _, name := range below {
		if err := w.dir(path.Join(at, name), false, false); err != nil {
			return err
		}
	}
	return nil
}

// look says what is at a path; false where that is left out.
func (w *walker) look(at string, was map[string]entry) (f found, ok bool, err error) {
	if w.except[at] || strings.HasPrefix(path.Base(at), Whiteout) {
		return f, false, nil
	}
	err = unix.Lstat(w.root+at, &f.stat)
	if errors.Is(err, fs.ErrNotExist) {
		return f, false, nil
	}
	if err != nil {
		return f, false, unreadable(at, err)
	}
	if f.dir() && f.stat.Dev != w.dev || f.stat.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return f, false, nil
	}
	f.old, f.known = was[path.Base(at)]
	f.same = f.known && f.old.dir == f.dir() && f.old.ctime == f.stat.Ctim.Nano()
	return f, true, nil
}

// hidden reports whether something that no look has shown is there all the same.
func (w *walker) hidden(at string) bool {
	var st unix.Stat_t
	return strings.HasPrefix(path.Base(at), Whiteout) || unix.Lstat(w.root+at, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Dev != w.dev
}

func (w *walker) gone(dir, name string) error {
	return w.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: inTar(path.Join(dir, Whiteout+name)), Mode: 0o600, ModTime: time.Unix(0, 0)})
}

func inTar(at string) string { return strings.TrimPrefix(at, "/") }

// entry writes one, with its content.
func (w *walker) entry(at string, st unix.Stat_t) error {
	h := &tar.Header{
		Name: inTar(at), Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid), ModTime: time.Unix(st.Mtim.Sec, 0),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case unix.S_IFLNK:
		target, err := os.Readlink(w.root + at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return unreadable(at, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFREG:
		return w.file(at, h)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return nil // a device: no sandbox can make one
	}
	return w.out.WriteHeader(h)
}

func (w *walker) file(at string, h *tar.Header) error {
	// It may have become something else meanwhile, and a pipe would be waited for.
	f, err := os.OpenFile(w.root+at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return unreadable(at, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return unreadable(at, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	id := inode{st.Dev, st.Ino}
	if first, ok := w.links[id]; ok && st.Nlink > 1 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return w.out.WriteHeader(h)
	}
	if st.Nlink > 1 {
		w.links[id] = h.Name
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := w.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w.out, io.LimitReader(f, st.Size))
	if err == nil && n < st.Size {
		_, err = io.CopyN(w.out, zeros{}, st.Size-n)
	}
	if err != nil {
		return unreadable(at, err)
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func unreadable(at string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%.500q cannot be read: %w", at, err)
}
