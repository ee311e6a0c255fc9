package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// FS is `sandtrail fs`.
type FS struct {
	Ls       FSLs       `cmd:"" help:"List a directory."`
	Cat      FSCat      `cmd:"" help:"Print a file, byte for byte."`
	Write    FSWrite    `cmd:"" help:"Write a text, or what comes in on stdin, into a file."`
	Mkdir    FSMkdir    `cmd:"" help:"Make a directory, and those that it is in."`
	Mv       FSMv       `cmd:"" help:"Move or rename a file or directory."`
	Rm       FSRm       `cmd:"" help:"Remove a file, or a directory with all that is in it."`
	Info     FSInfo     `cmd:"" help:"Show what is at a path."`
	Search   FSSearch   `cmd:"" help:"Find files by a glob."`
	Grep     FSGrep     `cmd:"" help:"Find lines that hold a text."`
	Replace  FSReplace  `cmd:"" help:"Put one text in the place of another."`
	Upload   FSUpload   `cmd:"" help:"Copy a local file into a sandbox."`
	Download FSDownload `cmd:"" help:"Copy a file out of a sandbox."`
	Watch    FSWatch    `cmd:"" help:"Tell what changes in a directory."`
}

// inBox is what every command about files has.
type inBox struct {
	Remote
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// file makes a call of a files route and reads its answer into out.
func (b *inBox) file(e *Env, method, route string, query url.Values, body, out any) error {
	ctx, api, done, err := b.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	return api.JSON(ctx, method, named.Box(b.Name, "toolbox/files"+route), query, body, out)
}

// FSLs is `sandtrail fs ls`.
type FSLs struct {
	inBox
	Format
	Dir  string `arg:"" optional:"" help:"The directory. Default: the workspace."`
	Path string `hidden:"" help:"The directory."`
}

// Run lists.
func (f *FSLs) Run(e *Env) error {
	var answer json.RawMessage
	if err := f.file(e, http.MethodGet, "", url.Values{"path": {first(f.Dir, f.Path)}}, nil, &answer); err != nil {
		return err
	}
	return f.show(e.Stdout, answer, func(w io.Writer) error {
		var all struct {
			Files     []map[string]any
			Truncated bool
		}
		if err := json.Unmarshal(answer, &all); err != nil {
			return err
		}
		t := render.Table{Header: []string{"MODE", "SIZE", "MODIFIED", "NAME"}}
		for _, x := range all.Files {
			name := text(x, "name")
			if x["is_dir"] == true {
				name += "/"
			}
			size, _ := x["size"].(float64)
			t.Rows = append(t.Rows, []string{text(x, "mode"), fmt.Sprintf("%.0f", size), text(x, "mod_time"), name})
		}
		if all.Truncated {
			e.warn("there is more than is shown")
		}
		return t.Write(w)
	})
}

// FSCat is `sandtrail fs cat`.
type FSCat struct {
	inBox
	Path string `arg:"" help:"The file."`
}

// Run prints it.
func (f *FSCat) Run(e *Env) error {
	return f.fetch(e, f.Path, func(r io.Reader, _ int64) error {
		_, err := io.Copy(e.Stdout, r)
		return err
	})
}

func (b *inBox) fetch(e *Env, from string, take func(r io.Reader, size int64) error) error {
	ctx, api, done, err := b.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	res, err := api.Do(ctx, named.Request{Method: http.MethodGet, Path: named.Box(b.Name, "toolbox/files/download"), Query: url.Values{"path": {from}}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := take(res.Body, res.ContentLength); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// FSWrite is `sandtrail fs write`.
type FSWrite struct {
	inBox
	Path    string  `arg:"" help:"The file."`
	Content *string `arg:"" optional:"" help:"What it is to hold. Default: what comes in on stdin."`
}

// Run writes it.
func (f *FSWrite) Run(e *Env) error {
	data := e.Stdin
	if f.Content != nil {
		data = strings.NewReader(*f.Content)
	}
	return f.put(e, data, f.Path, path.Base(f.Path))
}

// written is what a server says of a file that it took.
type written struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

func (b *inBox) put(e *Env, data io.Reader, to, name string) error {
	ctx, api, done, err := b.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	var w written
	if err := api.Upload(ctx, b.Name, to, name, data, &w); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.Stdout, "%s  %d bytes\n", render.Clean(w.Path), w.Size)
	return err
}

// FSMkdir is `sandtrail fs mkdir`.
type FSMkdir struct {
	inBox
	Path string `arg:"" help:"The directory."`
}

// Run makes it.
func (f *FSMkdir) Run(e *Env) error {
	return f.file(e, http.MethodPost, "/folder", url.Values{"path": {f.Path}}, nil, &map[string]any{})
}

// FSMv is `sandtrail fs mv`.
type FSMv struct {
	inBox
	Source      string `arg:"" help:"What to move."`
	Destination string `arg:"" help:"Where to."`
}

// Run moves it.
func (f *FSMv) Run(e *Env) error {
	return f.file(e, http.MethodPost, "/move", url.Values{"source": {f.Source}, "destination": {f.Destination}}, nil, &map[string]any{})
}

// FSRm is `sandtrail fs rm`.
type FSRm struct {
	inBox
	Path string `arg:"" help:"What to remove."`
}

// Run removes it.
func (f *FSRm) Run(e *Env) error {
	return f.file(e, http.MethodDelete, "/delete", url.Values{"path": {f.Path}}, nil, &map[string]any{})
}

// FSInfo is `sandtrail fs info`.
type FSInfo struct {
	inBox
	Format
	Path string `arg:"" help:"The path."`
}

// Run shows it.
func (f *FSInfo) Run(e *Env) error {
	return f.shown(e, &f.Format, named.Box(f.Name, "toolbox/files/info?"+url.Values{"path": {f.Path}}.Encode()), []string{
		"name", "path", "is_dir", "size", "mode", "mod_time", "link_target",
	})
}

// FSSearch is `sandtrail fs search`.
type FSSearch struct {
	inBox
	Format
	Pattern string `arg:"" help:"A glob: * and ? stay within one level, ** is any number of levels."`
	Path    string `placeholder:"DIR" help:"Where to look. Default: the workspace."`
}

// Run finds files.
func (f *FSSearch) Run(e *Env) error {
	var answer json.RawMessage
	if err := f.file(e, http.MethodGet, "/search", url.Values{"path": {f.Path}, "pattern": {f.Pattern}}, nil, &answer); err != nil {
		return err
	}
	return f.show(e.Stdout, answer, func(w io.Writer) error {
		var all struct{ Files []string }
		if err := json.Unmarshal(answer, &all); err != nil {
			return err
		}
		for _, name := range all.Files {
			if _, err := fmt.Fprintln(w, render.Clean(name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// FSGrep is `sandtrail fs grep`.
type FSGrep struct {
	inBox
	Format
	Pattern string `arg:"" help:"The text, taken literally."`
	Path    string `placeholder:"PATH" help:"Where to look. Default: the workspace."`
}

// Run finds lines.
func (f *FSGrep) Run(e *Env) error {
	var answer json.RawMessage
	if err := f.file(e, http.MethodGet, "/find", url.Values{"path": {f.Path}, "pattern": {f.Pattern}}, nil, &answer); err != nil {
		return err
	}
	return f.show(e.Stdout, answer, func(w io.Writer) error {
		var all []struct {
			File    string
			Line    int
			Content string
		}
		if err := json.Unmarshal(answer, &all); err != nil {
			return err
		}
		for _, m := range all {
			if _, err := fmt.Fprintf(w, "%s:%d: %s\n", render.Clean(m.File), m.Line, render.Clean(m.Content)); err != nil {
				return err
			}
		}
		return nil
	})
}

// FSReplace is `sandtrail fs replace`.
type FSReplace struct {
	inBox
	File    string `arg:"" help:"The file."`
	Pattern string `arg:"" help:"The text to replace, taken literally."`
	New     string `arg:"" help:"What to put in its place."`
}

// Run replaces.
func (f *FSReplace) Run(e *Env) error {
	var done []struct{ Replacements int }
	body := map[string]any{"files": []string{f.File}, "pattern": f.Pattern, "newValue": f.New}
	if err := f.file(e, http.MethodPost, "/replace", nil, body, &done); err != nil {
		return err
	}
	n := 0
	for _, d := range done {
		n += d.Replacements
	}
	_, err := fmt.Fprintf(e.Stdout, "%s  %d replaced\n", render.Clean(f.File), n)
	return err
}

// FSUpload is `sandtrail fs upload`.
type FSUpload struct {
	inBox
	Local  string `arg:"" help:"The local file, or - for stdin."`
	Target string `arg:"" help:"Its path in the sandbox; one that ends in / gets it under its own name."`
}

// Run copies it.
func (f *FSUpload) Run(e *Env) error {
	if f.Local == "-" {
		return f.put(e, e.Stdin, f.Target, path.Base(f.Target))
	}
	file, err := os.Open(f.Local)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return usagef("%s is no regular file", f.Local)
	}
	p := render.NewProgress(e.Stderr)
	defer p.Clear()
	return f.put(e, &counted{r: file, p: p, name: f.Local, total: info.Size()}, f.Target, filepath.Base(f.Local))
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
	Source string `arg:"" help:"The file in the sandbox."`
	Local  string `arg:"" optional:"" help:"The local file, a directory, or - for stdout. Default: its own name, here."`
}

// Run copies it. The local file changes once all of it is here.
func (f *FSDownload) Run(e *Env) error {
	to := first(f.Local, path.Base(f.Source))
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		to = filepath.Join(to, path.Base(f.Source))
	}
	p := render.NewProgress(e.Stderr)
	defer p.Clear()
	return f.fetch(e, f.Source, func(r io.Reader, size int64) error {
		r = &counted{r: r, p: p, name: f.Source, total: size}
		if to == "-" {
			_, err := io.Copy(e.Stdout, r)
			return err
		}
		file, err := os.CreateTemp(filepath.Dir(to), ".sandtrail-download-*")
		if err != nil {
			return err
		}
		n, err := io.Copy(file, r)
		err = errors.Join(err, file.Chmod(defaultMode), file.Close())
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
	})
}
