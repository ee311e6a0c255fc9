// Package archive packs a local directory into a tar stream and unpacks one, so that nothing of it gets outside of the directory.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
)

// Told is who hears of what goes on; both are set.
type Told struct {
	// Skipped is an entry that is left out, and why.
	Skipped func(name, why string)
	// Copied is the entry at work, and how many bytes of all files are done.
	Copied func(name string, done int64)
}

// Size is how many bytes the files below a directory have.
func Size(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n += info.Size()
		return nil
	})
	return n, err
}

// Pack writes a directory as a tar stream: files, directories and symbolic links, with permissions and times. A file whose size changes meanwhile
// is an error.
func Pack(w io.Writer, dir string, told Told) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // it was only read
	p := &packer{root: root, out: tar.NewWriter(w), told: told}
	if err := fs.WalkDir(root.FS(), ".", p.entry); err != nil {
		return err
	}
	return p.out.Close()
}

type packer struct {
	root *os.Root
	out  *tar.Writer
	told Told
	done int64
}

func (p *packer) entry(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	switch {
	case info.IsDir(), info.Mode().IsRegular():
	case info.Mode().Type() == fs.ModeSymlink:
		if target, err = p.root.Readlink(name); err != nil {
			return err
		}
	default:
		p.told.Skipped(name, "it is neither file, directory nor link")
		return nil
	}
	h, err := tar.FileInfoHeader(info, filepath.ToSlash(target))
	if err != nil {
		return err
	}
	// Who owns it here means nothing there.
	h.Name, h.Format, h.Uid, h.Gid, h.Uname, h.Gname = name, tar.FormatPAX, 0, 0, "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if info.IsDir() {
		h.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return p.out.WriteHeader(h)
	}
	return p.file(name, h)
}

func (p *packer) file(name string, h *tar.Header) error {
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(&counter{p.out, func(n int) { p.done += int64(n); p.told.Copied(name, p.done) }}, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s got shorter while it was read", name)
	}
	return err
}

// counter tells of each write.
type counter struct {
	w    io.Writer
	told func(n int)
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.told(n)
	return n, err
}

// Unpack writes what a tar stream holds below a directory, which is made where it is missing, and reads the stream to its end. Names that lead
// out of the directory are an error; links that do are skipped, as is what is neither file, directory nor link. Links are made last, so that
// no file is written through one of them. It returns how many files there were.
func Unpack(r io.Reader, dir string, told Told) (files int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as mkdir makes them, within the umask
		return 0, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close() // what was written through it was closed by itself
	u := &unpacker{root: root, in: tar.NewReader(r), told: told}
	for {
		h, err := u.in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = u.entry(h)
		}
		if err != nil {
			return u.files, err
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return u.files, err
	}
	return u.files, u.rest()
}

type unpacker struct {
	root *os.Root
	in   *tar.Reader
	told Told
	// links and directories are made, and made as they are to be, at the end.
	links, dirs []*tar.Header
	files       int
	done        int64
}

func (u *unpacker) entry(h *tar.Header) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has a name that leads out of the directory: %q", h.Name)
	}
	h.Name = name
	switch h.Typeflag {
	case tar.TypeDir:
		u.dirs = append(u.dirs, h)
		return u.root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return u.file(h)
	case tar.TypeSymlink:
		u.links = append(u.links, h)
	default:
		u.told.Skipped(name, "it is neither file, directory nor link")
	}
	return nil
}

// number tells temporary files of one process apart.
var number atomic.Uint64

// file is written beside its place first, and takes it at once.
func (u *unpacker) file(h *tar.Header) (err error) {
	if err := u.root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
		return err
	}
	temp := path.Join(path.Dir(h.Name), ".sandtrail-download-"+strconv.Itoa(os.Getpid())+"-"+strconv.FormatUint(number.Add(1), 10))
	f, err := u.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = u.root.Remove(temp) // what made the copy fail is the error to tell
		}
	}()
	_, err = io.Copy(&counter{f, func(n int) { u.done += int64(n); u.told.Copied(h.Name, u.done) }}, u.in)
	if err = errors.Join(err, f.Chmod(h.FileInfo().Mode().Perm()), f.Close()); err != nil {
		return err
	}
	if err := u.root.Chtimes(temp, h.ModTime, h.ModTime); err != nil {
		return err
	}
	u.files++
	return u.root.Rename(temp, h.Name)
}

// rest makes links, and then directories what they are to be, the inner ones first.
func (u *unpacker) rest() error {
	for _, h := range u.links {
		to := path.Join(path.Dir(h.Name), h.Linkname)
		if path.IsAbs(h.Linkname) || !filepath.IsLocal(to) {
			u.told.Skipped(h.Name, "the link leads out of the directory, to "+strconv.Quote(h.Linkname))
			continue
		}
		if err := u.root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return err
		}
		if info, err := u.root.Lstat(h.Name); err == nil && !info.IsDir() {
			if err := u.root.Remove(h.Name); err != nil {
				return err
			}
		}
		if err := u.root.Symlink(filepath.FromSlash(h.Linkname), h.Name); err != nil {
			return err
		}
	}
	for i := len(u.dirs) - 1; i >= 0; i-- {
		h := u.dirs[i]
		err := errors.Join(u.root.Chmod(h.Name, h.FileInfo().Mode().Perm()), u.root.Chtimes(h.Name, h.ModTime, h.ModTime))
		if err != nil {
			return err
		}
	}
	return nil
}
