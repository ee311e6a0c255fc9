package debian

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree is the image in the making. Headers, with the owners that the packages name, are in memory; contents of regular files
// lie below dir, owned by whoever runs this.
type tree struct {
	dir     string
	root    *os.Root
	entries map[string]*tar.Header // by path without leading slash
	bytes   int64
}

func newTree(dir string) (*tree, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	return &tree{dir: dir, root: root, entries: map[string]*tar.Header{}}, nil
}

// skipped is documentation and data of programs that the image does not have.
var skipped = []string{
	"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/", "usr/share/bug/",
	"usr/share/bash-completion/", "usr/share/doc-base/", "usr/share/zsh/", "usr/share/applications/", "usr/share/pixmaps/",
	"usr/share/perl5/", "usr/share/gitweb/", "usr/share/menu/", "usr/lib/systemd/", "usr/lib/python3/dist-packages/setuptools/tests/",
	"etc/init.d/", "etc/cron.daily/", "etc/cron.weekly/", "etc/apt/", "var/lib/", "var/cache/",
}

func isSkipped(name string) bool {
	for _, s := range skipped {
		if strings.HasPrefix(name, s) {
			return true
		}
	}
	return false
}

func (t *tree) unpack(ctx context.Context, deb string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := t.read(tar.NewReader(out))
	if readErr == nil {
		_, readErr = io.Copy(io.Discard, out)
	} else {
		_ = out.Close()
	}
	return errors.Join(readErr, cmd.Wait())
}

func (t *tree) read(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := merged(strings.Trim(path.Clean("/"+h.Name), "/"))
		if name == "" || isSkipped(name+"/") {
			continue
		}
		if err := t.add(name, h, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// merged is where a path lies once /bin, /sbin and /lib* are links into /usr.
func merged(name string) string {
	first, _, _ := strings.Cut(name, "/")
	if isMerged(first) {
		return "usr/" + name
	}
	return name
}

func isMerged(first string) bool {
	return slices.Contains([]string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}, first)
}

func (t *tree) add(name string, h *tar.Header, content io.Reader) error {
	e := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o1777, Uid: h.Uid, Gid: h.Gid}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.mkdir(e)
	case tar.TypeSymlink:
		e.Linkname = relink(strings.Trim(path.Clean("/"+h.Name), "/"), name, h.Linkname)
	case tar.TypeLink:
		e.Linkname = merged(strings.Trim(path.Clean("/"+h.Linkname), "/"))
	case tar.TypeReg:
		return t.write(e, content)
	default:
		return nil
	}
	t.entries[name] = e
	return nil
}

// relink keeps a relative link that climbs pointing to the same file after its own directory has moved below /usr.
func relink(from, to, target string) string {
	if from == to || path.IsAbs(target) || !strings.HasPrefix(target, "..") {
		return target
	}
	return "/" + merged(strings.Trim(path.Join("/", path.Dir(from), target), "/"))
}

func (t *tree) mkdir(e *tar.Header) error {
	if _, ok := t.entries[e.Name]; ok {
		return nil
	}
	t.entries[e.Name] = e
	return t.root.MkdirAll(e.Name, 0o755)
}

func (t *tree) write(e *tar.Header, content io.Reader) error {
	if err := t.root.MkdirAll(path.Dir(e.Name), 0o755); err != nil {
		return err
	}
	f, err := t.root.OpenFile(e.Name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600|fs.FileMode(e.Mode)&0o777)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	e.Size = n
	t.bytes += n
	t.entries[e.Name] = e
	return errors.Join(err, f.Close())
}

// dirs makes the directory and those above it, owned by root.
func (t *tree) dirs(name string, mode int64, owner int) error {
	for up := path.Dir(name); up != "."; up = path.Dir(up) {
		if _, ok := t.entries[up]; !ok {
			t.entries[up] = &tar.Header{Typeflag: tar.TypeDir, Name: up, Mode: 0o755}
		}
	}
	t.entries[name] = &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: owner, Gid: owner}
	return t.root.MkdirAll(name, 0o755)
}

func (t *tree) file(name, content string, mode int64) error {
	if err := t.dirs(path.Dir(name), 0o755, 0); err != nil {
		return err
	}
	delete(t.entries, name)
	if err := t.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return t.write(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, strings.NewReader(content))
}

func (t *tree) link(name, target string) {
	t.entries[name] = &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func (t *tree) has(name string) bool {
	_, ok := t.entries[name]
	return ok
}

// abs is where the content of a file lies on this host.
func (t *tree) abs(name string) string { return filepath.Join(t.dir, filepath.FromSlash(name)) }
