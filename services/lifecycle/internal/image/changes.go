package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxRaw is what headers may add to the content of a tar that a sandbox has written, for each of its entries.
const maxRaw = 8 << 10

// counts are those of a layer: its bytes before it is compressed, and its entries.
type counts struct{ bytes, files int64 }

// relayer writes a layer from the tar that a sandbox says its changes are. Whoever made it may have lied: what comes out has only regular files,
// directories, links and pipes at paths below the root, with plain owners and modes, whiteouts that say what they seem to, and no more than most.
// The same changes make the same bytes.
func relayer(ctx context.Context, out io.Writer, in io.Reader, most counts) (counts, error) {
	raw := most.bytes + most.files*maxRaw
	counted := &counted{ctx: ctx, r: in, sum: sha256.New(), left: &raw}
	sized := &written{w: out}
	tr, tw := tar.NewReader(counted), tar.NewWriter(sized)
	left := most
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return counts{}, readFault(err)
		}
		if left.files--; left.files < 0 {
			return counts{}, invalid("more than %d files and directories were changed", most.files)
		}
		if left.bytes -= h.Size; h.Size < 0 || left.bytes < 0 {
			return counts{}, invalid("more than %d bytes were changed; %.200q has %d", most.bytes, h.Name, h.Size)
		}
		plain, err := plainHeader(h)
		if err != nil {
			return counts{}, err
		}
		if err := tw.WriteHeader(plain); err != nil {
			return counts{}, invalid("%.200q cannot stand in an image", h.Name)
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return counts{}, readFault(err)
		}
	}
	if _, err := io.Copy(io.Discard, counted); err != nil {
		return counts{}, readFault(err)
	}
	if err := tw.Close(); err != nil {
		return counts{}, err
	}
	return counts{bytes: sized.n, files: most.files - left.files}, nil
}

type written struct {
	w io.Writer
	n int64
}

func (w *written) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.n += int64(n)
	return n, err
}

// plainHeader has of an entry's header what may stand in an image, and nothing else.
func plainHeader(h *tar.Header) (*tar.Header, error) {
	name, err := cleanName(h.Name)
	if err != nil {
		return nil, err
	}
	if name == "" || strings.Count(name, "/") > maxDepth {
		return nil, invalid("%.200q is at no possible path, or in more than %d directories", h.Name, maxDepth)
	}
	if err := checkWhiteout(name, h); err != nil {
		return nil, err
	}
	if h.Uid < 0 || h.Uid > 65535 || h.Gid < 0 || h.Gid > 65535 {
		return nil, invalid("the owner %d:%d of %.200q is not between 0 and 65535", h.Uid, h.Gid, name)
	}
	out := &tar.Header{Typeflag: h.Typeflag, Name: name, Uid: h.Uid, Gid: h.Gid, ModTime: plainTime(h.ModTime), Mode: h.Mode & 0o777}
	switch h.Typeflag {
	case tar.TypeReg:
		out.Size = h.Size
	case tar.TypeDir:
		out.Name, out.Mode = name+"/", h.Mode&0o1777
	case tar.TypeFifo:
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > 4095 || strings.ContainsRune(h.Linkname, 0) {
			return nil, invalid("the symlink %.200q is impossible", name)
		}
		out.Linkname = h.Linkname
	case tar.TypeLink:
		if out.Linkname, err = cleanName(h.Linkname); err != nil {
			return nil, err
		}
		if out.Linkname == "" || out.Linkname == name {
			return nil, invalid("the hard link %.200q is impossible", name)
		}
	default:
		return nil, invalid("%.200q is neither file, directory, link nor pipe", name)
	}
	return out, nil
}

// checkWhiteout lets a name that begins as a whiteout's do stand only where it is one: an empty file, and not one of those with another meaning.
func checkWhiteout(name string, h *tar.Header) error {
	dir, base := path.Split(name)
	for part := range strings.SplitSeq(strings.TrimSuffix(dir, "/"), "/") {
		if strings.HasPrefix(part, whiteout) {
			return invalid("%.200q lies in what would be gone", name)
		}
	}
	what, ok := strings.CutPrefix(base, whiteout)
	if !ok {
		return nil
	}
	if h.Typeflag != tar.TypeReg || h.Size != 0 || what == "" || what == "." || what == ".." || strings.HasPrefix(what, whiteout) {
		return invalid("%.200q is no possible whiteout", name)
	}
	return nil
}

func plainTime(t time.Time) time.Time {
	if t.Unix() < 0 || t.Year() > 2200 {
		return time.Unix(0, 0)
	}
	return time.Unix(t.Unix(), 0)
}

// flatten writes an unpacked image as one layer. The same image makes the same bytes, whenever it was unpacked.
func flatten(ctx context.Context, out io.Writer, img Image, own bool) error {
	f := &flattener{ctx: ctx, out: tar.NewWriter(out), root: img.Rootfs, base: int(img.Base), own: own, links: map[uint64]string{}}
	if err := filepath.WalkDir(img.Rootfs, f.entry); err != nil {
		return err
	}
	return f.out.Close()
}

type flattener struct {
	ctx   context.Context
	out   *tar.Writer
	root  string
	base  int
	own   bool
	links map[uint64]string // by inode: an unpacked image lies on one file system
}

func (f *flattener) entry(at string, d fs.DirEntry, err error) error {
	if err = errors.Join(err, f.ctx.Err()); err != nil || at == f.root {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return err
	}
	h := &tar.Header{
		Name: strings.TrimPrefix(at, f.root+"/"), Mode: int64(st.Mode & 0o1777), ModTime: plainTime(time.Unix(st.Mtim.Sec, 0)),
	}
	if f.own {
		h.Uid, h.Gid = int(st.Uid)-f.base, int(st.Gid)-f.base
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		// The time of a directory is that of its last entry here, and differs from one unpacking to the next.
		h.Typeflag, h.Name, h.ModTime = tar.TypeDir, h.Name+"/", time.Unix(0, 0)
	case unix.S_IFLNK:
		if h.Linkname, err = os.Readlink(at); err != nil {
			return err
		}
		h.Typeflag, h.Mode, h.ModTime = tar.TypeSymlink, 0o777, time.Unix(0, 0)
	case unix.S_IFREG:
		return f.file(at, h, st)
	default:
		return nil // nothing else is unpacked
	}
	return f.out.WriteHeader(h)
}

func (f *flattener) file(at string, h *tar.Header, st unix.Stat_t) error {
	if first, ok := f.links[st.Ino]; ok && st.Nlink > 1 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return f.out.WriteHeader(h)
	}
	if st.Nlink > 1 {
		f.links[st.Ino] = h.Name
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := f.out.WriteHeader(h); err != nil {
		return err
	}
	file, err := os.Open(at)
	if err != nil {
		return err
	}
	_, err = io.Copy(f.out, file)
	return errors.Join(err, file.Close())
}
