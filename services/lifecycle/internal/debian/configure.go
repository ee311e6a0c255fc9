package debian

import (
	"archive/tar"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`

const group = `root:x:0:
daemon:x:1:
tty:x:5:
sandbox:x:1000:
nogroup:x:65534:
`

const nsswitch = `passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
`

// sitecustomize makes a print visible at once where standard output is a pipe, which it always is in an exec. Python collects a
// line before it writes, so one print stays one write.
const sitecustomize = `import sys

if sys.stdout is not None and not sys.stdout.isatty():
    sys.stdout.reconfigure(line_buffering=True)
`

// configure does what the packages' maintainer scripts would have done.
func (t *tree) configure(ctx context.Context) error {
	for _, step := range []func() error{t.directories, t.files, t.links, t.certificates, t.python} {
		if err := step(); err != nil {
			return err
		}
	}
	return t.compile(ctx)
}

func (t *tree) directories() error {
	for _, d := range []struct {
		name  string
		mode  int64
		owner int
	}{
		{"tmp", 0o1777, 0},
		{"var/tmp", 0o1777, 0},
		{"root", 0o700, 0},
		{"proc", 0o755, 0},
		{"sys", 0o755, 0},
		{"dev", 0o755, 0},
		{"run", 0o755, 0},
		{"workspace", 0o755, userID},
		{home[1:], 0o755, userID},
		{home[1:] + "/.local/bin", 0o755, userID},
		{home[1:] + "/.cache", 0o755, userID},
	} {
		if err := t.dirs(d.name, d.mode, d.owner); err != nil {
			return err
		}
	}
	t.entries[home[1:]+"/.local"].Uid, t.entries[home[1:]+"/.local"].Gid = userID, userID
	return nil
}

func (t *tree) files() error {
	for name, content := range map[string]string{
		"etc/passwd": passwd, "etc/group": group, "etc/nsswitch.conf": nsswitch, "etc/hostname": "sandbox\n", "etc/resolv.conf": "",
		"etc/hosts":           "127.0.0.1 localhost\n::1 localhost\n",
		home[1:] + "/.bashrc": "PS1='\\w\\$ '\n",
		"etc/gitconfig":       "[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n",
		"etc/ld.so.conf":      "include /etc/ld.so.conf.d/*.conf\n",
		"etc/timezone":        "Etc/UTC\n",
		"etc/pip.conf":        "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\nno-warn-script-location = true\n",
	} {
		if err := t.file(name, content, 0o644); err != nil {
			return err
		}
	}
	t.entries[home[1:]] = &tar.Header{Typeflag: tar.TypeDir, Name: home[1:], Mode: 0o755, Uid: userID, Gid: userID}
	t.entries[home[1:]+"/.bashrc"].Uid, t.entries[home[1:]+"/.bashrc"].Gid = userID, userID
	return nil
}

// links makes /bin and the like links into /usr, and what update-alternatives would have chosen.
func (t *tree) links() error {
	top := map[string]bool{"bin": true, "sbin": true, "lib": true}
	for name := range t.entries {
		if rest, ok := strings.CutPrefix(name, "usr/"); ok {
			if first, _, _ := strings.Cut(rest, "/"); isMerged(first) {
				top[first] = true
			}
		}
	}
	for name := range top {
		t.link(name, "usr/"+name)
	}
	for _, a := range [][2]string{
		{"usr/bin/sh", "dash"},
		{"usr/bin/awk", "gawk"},
		{"usr/bin/which", "which.debianutils"},
		{"usr/bin/pager", "less"},
		{"usr/bin/python", "python3"},
		{"usr/bin/pip", "pip3"},
		{"var/run", "/run"},
		{"var/lock", "/run/lock"},
		{"etc/localtime", "/usr/share/zoneinfo/Etc/UTC"},
	} {
		if !t.has(a[0]) {
			t.link(a[0], a[1])
		}
	}
	return nil
}

func (t *tree) certificates() error {
	files, err := filepath.Glob(t.abs("usr/share/ca-certificates/mozilla/*.crt"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no certificates in the package: %w", err)
	}
	sort.Strings(files)
	var all strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all.Write(data)
	}
	// OpenSSL looks for one file before it looks for a directory of hashed names.
	t.link("usr/lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")
	return t.file("etc/ssl/certs/ca-certificates.crt", all.String(), 0o644)
}

// python lets pip install for the user, and puts sitecustomize where the standard library finds it first.
func (t *tree) python() error {
	libs := t.pythonLibs()
	if len(libs) == 0 {
		return fmt.Errorf("the packages hold no Python")
	}
	for _, lib := range libs {
		delete(t.entries, lib+"/EXTERNALLY-MANAGED")
		if err := t.file(lib+"/sitecustomize.py", sitecustomize, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) pythonLibs() []string {
	var libs []string
	for name := range t.entries {
		if strings.HasPrefix(name, "usr/lib/python3.") && strings.HasSuffix(name, "/os.py") {
			libs = append(libs, path.Dir(name))
		}
	}
	sort.Strings(libs)
	return libs
}

// compile runs the image's own Python, through the image's own loader, to compile its library: a sandbox cannot write these
// files itself and would compile them again in every process. They are not checked against their sources, so that their bytes
// depend on nothing but those.
func (t *tree) compile(ctx context.Context) error {
	if err := t.materialise(); err != nil {
		return err
	}
	loader, err := t.loader()
	if err != nil {
		return err
	}
	lib := t.pythonLibs()[0]
	python := t.abs("usr/bin/" + path.Base(lib))
	multiarch, err := filepath.Glob(t.abs("usr/lib/*-linux-gnu*"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, loader, "--library-path", strings.Join(multiarch, ":"), python, "-S", "-m", "compileall",
		"-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", t.dir, "-p", "/", "-x", `/(test|idlelib|lib2to3|turtledemo)/`,
		t.abs(lib), t.abs("usr/lib/python3/dist-packages"))
	cmd.Env = []string{
		"PYTHONHOME=" + t.abs("usr"), "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "PYTHONHASHSEED=0",
		// What this Python imports for itself it would write with this host's paths and times.
		"PYTHONDONTWRITEBYTECODE=1",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile Python's library: %w: %.2000s", err, out)
	}
	return t.adopt("usr/lib")
}

// materialise makes the links that the loader and Python need to start.
func (t *tree) materialise() error {
	for name, e := range t.entries {
		if e.Typeflag != tar.TypeSymlink || !strings.HasPrefix(name, "usr/lib") || path.IsAbs(e.Linkname) {
			continue
		}
		if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if _, err := t.root.Lstat(name); err == nil {
			continue
		}
		if err := t.root.Symlink(e.Linkname, name); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) loader() (string, error) {
	found, err := filepath.Glob(t.abs("usr/lib/*/ld-linux-*.so.*"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("the packages hold no loader: %w", err)
	}
	return found[0], nil
}

// adopt takes the compiled files into the image.
func (t *tree) adopt(below string) error {
	return filepath.WalkDir(t.abs(below), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(t.dir, p)
		if err != nil || t.has(name) {
			return err
		}
		switch {
		case d.IsDir() && d.Name() == "__pycache__":
			t.entries[name] = &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
		case d.Type().IsRegular() && strings.HasSuffix(name, ".pyc"):
			info, err := d.Info()
			if err != nil {
				return err
			}
			t.entries[name] = &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size()}
			t.bytes += info.Size()
		}
		return nil
	})
}
