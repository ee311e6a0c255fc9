package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/archive"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// fetch opens a file of the sandbox, for take to read.
func (b *inBox) fetch(e *Env, from string, take func(*named.Download) error) error {
	ctx, api, done, err := b.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	d, err := api.Download(ctx, b.Name, from)
	if err != nil {
		return err
	}
	defer d.Close() // it was only read
	return copying(ctx, from, take(d))
}

// copying says of which copy an error is.
func copying(ctx context.Context, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("copy %s: %w", name, err)
}

// put sends a file and says what is there.
func (b *inBox) put(e *Env, u named.Upload) error {
	ctx, api, done, err := b.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	var w struct {
		Path string
		Size int64
	}
	u.Box = b.Name
	if err := api.Upload(ctx, u, &w); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.Stdout, "%s  %d bytes\n", render.Clean(w.Path), w.Size)
	return err
}

// FSUpload is `sandtrail fs upload`.
type FSUpload struct {
	inBox
	Recursive bool   `short:"r" help:"Copy a directory. It is copied without this, too."`
	Local     string `arg:"" help:"The local file or directory, or - for stdin."`
	Target    string `arg:"" help:"Its path in the sandbox; one that ends in / gets it under its own name."`
}

// Help is printed below the flags.
func (f *FSUpload) Help() string {
	return "Files of any size are copied, with permissions and times. A file is there once all of it is. Of a directory all below it is " +
		"copied, links as links; what is neither file, directory nor link, and links that lead out of it, are left out and named."
}

// Run copies it.
func (f *FSUpload) Run(e *Env) error {
	if f.Local == "-" {
		return f.put(e, named.Upload{Path: f.Target, Name: path.Base(f.Target), Data: e.Stdin})
	}
	info, err := os.Stat(f.Local)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return f.directory(e)
	}
	file, err := os.Open(f.Local)
	if err != nil {
		return err
	}
	defer file.Close() // it was only read
	if info, err = file.Stat(); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return usagef("%s is neither a regular file nor a directory", f.Local)
	}
	p := render.NewProgress(e.Stderr)
	defer p.Clear()
	return f.put(e, named.Upload{
		Path: f.Target, Name: filepath.Base(f.Local), Mode: info.Mode().Perm(), Modified: info.ModTime(),
		Data: &counted{r: file, p: p, name: f.Local, total: info.Size()},
	})
}

// directory sends one as an archive.
func (f *FSUpload) directory(e *Env) error {
	to := f.Target
	if to == "" || to[len(to)-1] == '/' {
		abs, err := filepath.Abs(f.Local)
		if err != nil {
			return err
		}
		to += filepath.Base(abs)
	}
	total, err := archive.Size(f.Local)
	if err != nil {
		return err
	}
	ctx, api, done, err := f.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	p := render.NewProgress(e.Stderr)
	defer p.Clear()
	var w struct {
		Path         string
		Files        int
		Bytes        int64
		Skipped      []struct{ Name, Reason string }
		SkippedCount int `json:"skipped_count"`
	}
	err = api.UploadTree(ctx, f.Name, to, func(w io.Writer) error { return archive.Pack(w, f.Local, e.told(p, total)) }, &w)
	p.Clear()
	if err != nil {
		return copying(ctx, f.Local, err)
	}
	for _, s := range w.Skipped {
		e.warn("%s is left out: %s", render.Clean(s.Name), render.Clean(s.Reason))
	}
	if more := w.SkippedCount - len(w.Skipped); more > 0 {
		e.warn("%d more are left out", more)
	}
	_, err = fmt.Fprintf(e.Stdout, "%s  %d files, %d bytes\n", render.Clean(w.Path), w.Files, w.Bytes)
	return err
}

// told shows how far an archive is.
func (e *Env) told(p *render.Progress, total int64) archive.Told {
	return archive.Told{
		Skipped: func(name, why string) {
			p.Clear()
			e.warn("%s is left out: %s", render.Clean(name), why)
		},
		Copied: func(name string, done int64) { p.Bytes(name, done, total) },
	}
}

// counted tells how far a copy is.
type counted struct {
	r           io.Reader
	p           *render.Progress
	name        string
	done, total int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.done += int64(n)
	c.p.Bytes(c.name, c.done, c.total)
	return n, err
}

// FSDownload is `sandtrail fs download`.
type FSDownload struct {
	inBox
	Recursive bool   `short:"r" help:"Copy a directory. It is copied without this, too."`
	Source    string `arg:"" help:"The file or directory in the sandbox."`
	Local     string `arg:"" optional:"" help:"The local name, a directory to put it into, or - for stdout, where a directory comes as a tar archive. Default: its own name, here."`
}

// Help is printed below the flags.
func (f *FSDownload) Help() string {
	return "Files of any size are copied, with permissions and times; a connection that breaks is made again. A local file changes once all of " +
		"the new one is here. Of a directory all below it is copied, links as links; links that lead out of it are left out and named."
}

// Run copies it.
func (f *FSDownload) Run(e *Env) error {
	to := first(f.Local, path.Base(f.Source))
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		to = filepath.Join(to, path.Base(f.Source))
	}
	p := render.NewProgress(e.Stderr)
	defer p.Clear()
	err := errDirectory
	if !f.Recursive {
		err = f.fetch(e, f.Source, func(d *named.Download) error { return f.file(e, d, to, p) })
	}
	if errors.Is(err, errDirectory) || client.Reason(err) == fault.ReasonPathNotFile {
		return f.directory(e, to, p)
	}
	return err
}

// errDirectory: a directory is asked for.
var errDirectory = errors.New("a directory")

// file writes one beside its place first: a copy that fails leaves what was there.
func (f *FSDownload) file(e *Env, d *named.Download, to string, p *render.Progress) error {
	r := &counted{r: d, p: p, name: f.Source, total: d.Size()}
	if to == "-" {
		_, err := io.Copy(e.Stdout, r)
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(to), ".sandtrail-download-*")
	if err != nil {
		return err
	}
	mode, modified := d.Kept()
	if mode == 0 {
		mode = defaultMode
	}
	n, err := io.Copy(file, r)
	err = errors.Join(err, file.Chmod(mode), file.Close())
	if err == nil && !modified.IsZero() {
		err = os.Chtimes(file.Name(), modified, modified)
	}
	if err == nil {
		err = os.Rename(file.Name(), to)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return err
	}
	p.Clear()
	_, err = fmt.Fprintf(e.Stdout, "%s  %d bytes\n", to, n)
	return err
}

// directory unpacks one as it comes.
func (f *FSDownload) directory(e *Env, to string, p *render.Progress) error {
	ctx, api, done, err := f.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	body, skipped, err := api.Tree(ctx, f.Name, f.Source)
	if err != nil {
		return err
	}
	defer body.Close() // it was only read
	files := 0
	if to == "-" {
		_, err = io.Copy(e.Stdout, body)
	} else {
		files, err = archive.Unpack(body, to, e.told(p, -1))
	}
	p.Clear()
	if err != nil {
		return copying(ctx, f.Source, err)
	}
	if n := skipped(); n > 0 {
		e.warn("%d entries are left out by the server: they are neither file, directory nor link, have names that are no UTF-8, or went away", n)
	}
	if to == "-" {
		return nil
	}
	_, err = fmt.Fprintf(e.Stdout, "%s  %d files\n", to, files)
	return err
}
