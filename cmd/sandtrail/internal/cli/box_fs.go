package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
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
	Upload   FSUpload   `cmd:"" help:"Copy a local file or directory into a sandbox."`
	Download FSDownload `cmd:"" help:"Copy a file or directory out of a sandbox."`
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
	return f.fetch(e, f.Path, func(d *named.Download) error {
		_, err := io.Copy(e.Stdout, d)
		return err
	})
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
	return f.put(e, named.Upload{Path: f.Path, Name: path.Base(f.Path), Data: data})
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
