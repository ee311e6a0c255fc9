package image

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	maxLinks = 40
	maxDepth = 128
)

// unpacker writes entries below root. Every path is resolved as the guest would see it and holds no symlink when it is used;
// os.Root refuses whatever would still leave the directory.
type unpacker struct {
	root      *os.Root
	base      uint32
	own       bool // may give files away
	bytesLeft int64
	filesLeft int64
	fresh     map[string]bool // paths that the layer in work has made, or made something below
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if u.filesLeft--; u.filesLeft < 0 {
		return invalid("it has more files than this worker allows")
	}
	if strings.Count(name, "/") > maxDepth {
		return invalid("a layer holds a path of more than %d directories", maxDepth)
	}
	if name == "" {
		return nil
	}
	dir, err := u.resolve(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	switch {
	case base == opaque:
		return u.clear(dir)
	case strings.HasPrefix(base, whiteout):
		return u.remove(dir, strings.TrimPrefix(base, whiteout))
	}
	if err := u.parents(dir); err != nil {
		return err
	}
	at := path.Join(dir, base)
	for up := at; up != "."; up = path.Dir(up) {
		u.fresh[up] = true
	}
	return ioFault(u.write(at, h, content))
}

// ioFault: names that this host cannot hold are the image's fault, a full disk is not.
func ioFault(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) && (strings.Contains(pe.Err.Error(), "escapes") || errors.Is(err, fs.ErrInvalid)) {
		return invalid("a layer's path leaves the image")
	}
	return err
}

func (u *unpacker) remove(dir, base string) error {
	if base == "" || base == "." || base == ".." {
		return invalid("a layer holds an impossible whiteout")
	}
	at := path.Join(dir, base)
	if u.fresh[at] {
		return ioFault(u.clear(at))
	}
	return ioFault(u.root.RemoveAll(at))
}

// clear removes what lower layers put into a directory and keeps what this one did, in whatever order the entries come.
func (u *unpacker) clear(dir string) error {
	info, err := u.root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	d, err := u.root.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, n := range names {
		at := path.Join(dir, n)
		if u.fresh[at] {
			err = u.clear(at)
		} else {
			err = u.root.RemoveAll(at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parents makes the directories above an entry that the layer leaves out.
func (u *unpacker) parents(dir string) error {
	if dir == "." {
		return nil
	}
	info, err := u.root.Lstat(dir)
	if err == nil {
		if !info.IsDir() {
			return invalid("a layer puts a file below a file")
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return ioFault(err)
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	if err := u.root.Mkdir(dir, 0o755); err != nil {
		return ioFault(err)
	}
	return u.lchown(dir, 0, 0)
}

func (u *unpacker) write(at string, h *tar.Header, content io.Reader) error {
	old, err := u.root.Lstat(at)
	if err == nil && !(old.IsDir() && h.Typeflag == tar.TypeDir) {
		if err := u.root.RemoveAll(at); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(at, h)
	case tar.TypeReg:
		return u.file(at, h, content)
	case tar.TypeSymlink:
		if len(h.Linkname) == 0 || len(h.Linkname) > 4095 {
			return invalid("a layer holds an impossible symlink")
		}
		// A link may point anywhere: only the guest follows it, below its own root.
		if err := u.root.Symlink(h.Linkname, at); err != nil {
			return err
		}
		return u.lchown(at, h.Uid, h.Gid)
	case tar.TypeLink:
		return u.hardLink(at, h)
	}
	// Devices, pipes and whatever else there may be: a sandbox has its own /dev.
	return nil
}

func (u *unpacker) dir(at string, h *tar.Header) error {
	if err := u.root.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := u.lchown(at, h.Uid, h.Gid); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if !u.own {
		// Without root the owner is whoever runs this, and must be able to go on.
		mode |= 0o700
	}
	return u.root.Chmod(at, mode)
}

// file writes a regular file. Set-id bits are dropped: nothing in a sandbox gains rights.
func (u *unpacker) file(at string, h *tar.Header, content io.Reader) error {
	f, err := u.root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if u.own && err == nil {
		uid, gid, e := u.owner(h.Uid, h.Gid)
		if err = e; err == nil {
			err = f.Chown(uid, gid)
		}
	}
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode & 0o777))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	when := h.ModTime
	if when.Unix() < 0 || when.Year() > 2200 {
		when = time.Unix(0, 0)
	}
	return u.root.Chtimes(at, when, when)
}

func (u *unpacker) hardLink(at string, h *tar.Header) error {
	name, err := cleanName(h.Linkname)
	if err != nil {
		return err
	}
	dir, err := u.resolve(path.Dir(name))
	if err != nil {
		return err
	}
	target := path.Join(dir, path.Base(name))
	info, err := u.root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
		return invalid("a layer holds a hard link to %.200q, which is no file of the image", h.Linkname)
	}
	if err != nil {
		return err
	}
	return u.root.Link(target, at)
}

func (u *unpacker) owner(uid, gid int) (int, int, error) {
	if uid < 0 || uid > 65535 || gid < 0 || gid > 65535 {
		return 0, 0, invalid("a file's owner %d:%d is not between 0 and 65535", uid, gid)
	}
	return uid + int(u.base), gid + int(u.base), nil
}

func (u *unpacker) lchown(at string, uid, gid int) error {
	uid, gid, err := u.owner(uid, gid)
	if err != nil || !u.own {
		return err
	}
	return u.root.Lchown(at, uid, gid)
}

// resolve follows the symlinks in a directory's path as the guest would, with the image's root as the top: an absolute link
// starts there, and a climb ends there.
func (u *unpacker) resolve(dir string) (string, error) {
	done := "."
	rest := strings.Split(dir, "/")
	links := 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := u.root.Lstat(next)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", ioFault(err)
		}
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", invalid("a layer's path %.200q goes through too many symlinks", dir)
		}
		target, err := u.root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			done = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}
