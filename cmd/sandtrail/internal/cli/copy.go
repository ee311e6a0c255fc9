package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// defaultMode is what a file gets that has none here or there.
const defaultMode = 0o644

// Cp is `sandtrail cp`.
type Cp struct {
	Server
	Recursive bool   `short:"r" help:"Copy a directory with all below it. Links and special files are left out and named."`
	Source    string `arg:"" help:"SANDBOX:PATH, a local path, or - for stdin."`
	Target    string `arg:"" help:"SANDBOX:PATH, a local path, or - for stdout."`
}

// Help is printed below the flags.
func (c *Cp) Help() string {
	return "Paths in a sandbox are relative to its workspace. A target that ends in / gets the source under its own name; without it the " +
		"target is the copy's name. Directories on the way are made, empty ones are not copied. Files of any size are copied in parts of " +
		"4 MiB; permission bits are kept. A file is there once all of it is: until then, and where the copy fails, readers see the old one."
}

// place is one side of a copy; Sandbox is empty for a local one.
type place struct{ Sandbox, Path string }

// parsePlace takes what is before the first colon for a sandbox only if it is an id, so that local names may hold colons.
func parsePlace(s string) place {
	if id, p, ok := strings.Cut(s, ":"); ok && ids.Valid(strings.ToLower(id)) {
		return place{Sandbox: strings.ToLower(id), Path: p}
	}
	return place{Path: s}
}

// copied is what is told at the end.
type copied struct {
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped"`
}

// transfer is one copy under way.
type transfer struct {
	copied
	ctx      context.Context //nolint:containedctx // it lives as long as the one command that it is of
	env      *Env
	api      *client.Client
	progress *render.Progress
}

// Run copies.
func (c *Cp) Run(e *Env) error {
	src, dst := parsePlace(c.Source), parsePlace(c.Target)
	if (src.Sandbox == "") == (dst.Sandbox == "") {
		return usagef("one of the two must be SANDBOX:PATH, the other a local path or -")
	}
	ctx, api, done, err := c.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	t := &transfer{ctx: ctx, env: e, api: api, progress: render.NewProgress(e.Stderr), copied: copied{Skipped: []string{}}}
	if dst.Sandbox != "" {
		err = t.upload(src.Path, dst, c.Recursive)
	} else {
		err = t.download(src, dst.Path, c.Recursive)
	}
	t.progress.Clear()
	if err != nil {
		return ended(ctx, err)
	}
	switch {
	case !c.json():
		files := "files"
		if t.Files == 1 {
			files = "file"
		}
		_, err = fmt.Fprintf(e.Stderr, "%d %s, %s copied\n", t.Files, files, render.Bytes(uint64(t.Bytes)))
		return err
	case dst == place{Path: "-"}:
		return nil
	default:
		return render.Value(e.Stdout, t.copied)
	}
}

func (t *transfer) skip(name, why string) {
	t.progress.Clear()
	t.Skipped = append(t.Skipped, name)
	t.env.warn("%s is left out: %s", render.Clean(name), why)
}

func (t *transfer) upload(local string, dst place, recursive bool) error {
	if local == "-" {
		if dst.Path == "" || strings.HasSuffix(dst.Path, "/") {
			return usagef("stdin has no name: say which file %s is to be", dst.Path)
		}
		return t.put(t.env.Stdin, dst, "-", -1, defaultMode)
	}
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	if dst.Path == "" || strings.HasSuffix(dst.Path, "/") {
		abs, err := filepath.Abs(local)
		if err != nil {
			return err
		}
		dst.Path += filepath.Base(abs)
	}
	if !info.IsDir() {
		return t.putFile(local, dst)
	}
	if !recursive {
		return usagef("%s is a directory: give -r", local)
	}
	return filepath.WalkDir(local, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		if !d.Type().IsRegular() {
			t.skip(name, "it is no regular file")
			return nil
		}
		rel, err := filepath.Rel(local, name)
		if err != nil {
			return err
		}
		return t.putFile(name, place{dst.Sandbox, path.Join(dst.Path, filepath.ToSlash(rel))})
	})
}

func (t *transfer) putFile(local string, dst place) error {
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return t.put(f, dst, local, info.Size(), uint32(info.Mode().Perm()))
}

func (t *transfer) put(r io.Reader, dst place, name string, size int64, mode uint32) error {
	n, err := t.api.Upload(t.ctx, dst.Sandbox, dst.Path, r, mode, func(done int64) { t.progress.Bytes(name, done, size) })
	t.Bytes += n
	if err != nil {
		return aboutError{"copy " + name, err}
	}
	t.Files++
	return nil
}

func (t *transfer) download(src place, local string, recursive bool) error {
	if local == "-" {
		return t.get(src, t.env.Stdout)
	}
	entry, err := t.api.Stat(t.ctx, src.Sandbox, src.Path)
	if err != nil {
		return err
	}
	into := strings.HasSuffix(local, "/")
	if entry.GetIsDir() {
		if !recursive {
			return usagef("%s is a directory: give -r", src.Path)
		}
		if name := path.Base(path.Clean(src.Path)); into && name != "." && name != "/" {
			local = filepath.Join(local, name)
		}
		return t.getTree(src, local)
	}
	if info, err := os.Stat(local); err == nil && info.IsDir() {
		into = true
	}
	if into {
		local = filepath.Join(local, path.Base(path.Clean(src.Path)))
	}
	if info, err := os.Stat(local); err == nil && !info.Mode().IsRegular() {
		// A device or a pipe is written to, not replaced.
		f, err := os.OpenFile(local, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close() // what was written to a device is not buffered here
		return t.get(src, f)
	}
	if err := os.MkdirAll(filepath.Dir(local), 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(local))
	if err != nil {
		return err
	}
	defer root.Close() // a directory that was only read
	return t.getFile(src, root, filepath.Base(local), mode(entry))
}

func mode(e *computev1.FileEntry) fs.FileMode {
	if m := fs.FileMode(e.GetMode()).Perm(); m != 0 {
		return m
	}
	return defaultMode
}

// getTree copies a directory. What the sandbox calls its files is not trusted: everything is written through an os.Root, so that
// no name and no link leads out of the target.
func (t *transfer) getTree(src place, local string) error {
	prefix, err := t.inWorkspace(src)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(local, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return err
	}
	defer root.Close() // a directory that was only read
	return t.api.Walk(t.ctx, src.Sandbox, src.Path, func(e *computev1.FileEntry) error {
		name := e.GetPath()
		rel, below := strings.CutPrefix(name, prefix)
		switch {
		case !below || !filepath.IsLocal(rel):
			t.skip(name, "its name leads out of the directory")
			return nil
		case e.GetLinkTarget() != "":
			t.skip(name, "it is a link")
			return nil
		case e.GetIsDir():
			return root.MkdirAll(rel, 0o755)
		}
		if err := root.MkdirAll(filepath.Dir(rel), 0o755); err != nil {
			return err
		}
		err := t.getFile(place{src.Sandbox, name}, root, rel, mode(e))
		if client.Reason(err) == fault.ReasonPathNotFile {
			t.skip(name, "it is no regular file")
			return nil
		}
		return err
	})
}

// inWorkspace is what the paths of entries below src begin with: listings name files relative to the workspace.
func (t *transfer) inWorkspace(src place) (string, error) {
	p := path.Clean(src.Path)
	if path.IsAbs(p) {
		b, err := client.Retry(t.ctx, t.api, func(ctx context.Context) (*computev1.DescribeSandboxResponse, error) {
			return t.api.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: src.Sandbox})
		})
		if err != nil {
			return "", err
		}
		p = strings.Trim(strings.TrimPrefix(p, path.Clean("/"+b.GetDetail().GetWorkspace().GetMountPath())), "/")
	}
	if p == "" || p == "." {
		return "", nil
	}
	return p + "/", nil
}

func (t *transfer) get(src place, w io.Writer) error {
	n, err := t.api.Download(t.ctx, src.Sandbox, src.Path, w, func(done, total int64) { t.progress.Bytes(src.Path, done, total) })
	t.Bytes += n
	if err != nil {
		return aboutError{"copy " + src.Path, err}
	}
	t.Files++
	return nil
}

// getFile writes beside the target first: a copy that fails leaves what was there.
func (t *transfer) getFile(src place, root *os.Root, name string, mode fs.FileMode) (err error) {
	temp := filepath.Join(filepath.Dir(name), ".sandtrail-"+ids.New())
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(temp) // what made the copy fail is the error to tell
		}
	}()
	if err := t.get(src, f); err != nil {
		_ = f.Close() // the copy has failed already
		return err
	}
	if err := f.Chmod(mode); err != nil {
		_ = f.Close() // the copy has failed already
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return root.Rename(temp, name)
}
