package sandboxapi

import (
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/content"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// maxFiles is how many files come in one request, and the one behind them that is refused.
const maxFiles = 100

// uploaded says of a file that it is there.
type uploaded struct {
	Success bool   `json:"success"`
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256,omitempty"`
	Error   string `json:"error,omitempty"`
}

// parts reads the files of a multipart body one after the other, each as it comes. each gets a part and the name of its file, without
// directories.
func (c *call) parts(each func(part *multipart.Part, file string) (more bool, err error)) (err error) {
	body := content.NewBody(c.w, c.r, c.opt.BodyTime)
	defer func() { body.Done(err) }()
	r, err := content.Multipart(c.r, body)
	if err != nil {
		return fault.New(fault.InvalidArgument, fault.ReasonMediaType, "send the file as `Content-Type: multipart/form-data`")
	}
	if !c.memory.Take(2 * usecase.PartBytes) {
		return edge.Busy()
	}
	defer c.memory.Give(2 * usecase.PartBytes)
	for range maxFiles {
		part, err := r.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return malformed("it is no multipart form, or its end did not come")
		}
		more, err := each(part, base(part))
		if err != nil || !more {
			return err
		}
		_ = part.Close() // what is left of it is skipped
	}
	return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "one request has at most %d files", maxFiles-1)
}

// base is the last element of a part's file name; clients of all systems send whole paths.
func base(p *multipart.Part) string {
	name := p.FileName()
	return name[strings.LastIndexByte(name, '\\')+1:]
}

// upload makes a file of the part called file. A path that is a directory, or ends with a slash, is where it goes under its own name;
// otherwise the path is its name.
func (c *call) upload() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	to, err := c.param("path")
	if err != nil {
		return err
	}
	var done *uploaded
	err = c.parts(func(part *multipart.Part, file string) (bool, error) {
		if part.FormName() != "file" {
			return true, nil
		}
		at := p.abs(to)
		if strings.HasSuffix(to, "/") || c.isDir(p, at) {
			if file == "" || file == "." || file == ".." || file == "/" {
				return false, field("file", "must have a file name where path is a directory")
			}
			at = path.Join(at, file)
		}
		done, err = c.put(p, at, file, part)
		return false, err
	})
	if err == nil && done == nil {
		err = field("file", "must be a part of the form")
	}
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, done)
}

// isDir reports whether a path is a directory of the workspace.
func (c *call) isDir(p place, at string) bool {
	_, _, err := c.use.ListFiles(c.ctx, c.p, p.id, at, false, 1)
	return err == nil
}

// uploadAll makes a file of each part, in one directory, under the name of the part. One that fails does not keep the others; the answer
// says which.
func (c *call) uploadAll() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	dir := c.r.URL.Query().Get("path")
	if len(dir) > maxPath || strings.IndexByte(dir, 0) >= 0 {
		return field("path", "must be a path of at most 4,096 bytes without a zero byte")
	}
	results, ok := []*uploaded{}, true
	var first error
	err = c.parts(func(part *multipart.Part, file string) (bool, error) {
		name := part.FormName()
		if file == "" {
			return true, nil // no file, a plain field of the form
		}
		if name == "" || name == "file" || name == "files" {
			name = file
		}
		if strings.Contains(name, "..") || path.IsAbs(name) {
			name = path.Base(name)
		}
		done, err := c.put(p, path.Join(p.abs(dir), name), name, part)
		if err != nil {
			if c.ctx.Err() != nil {
				return false, err
			}
			ok, done = false, &uploaded{Name: name, Error: fault.From(err).Message}
			if first == nil {
				first = err
			}
		}
		results = append(results, done)
		return true, nil
	})
	switch {
	case err != nil:
		return err
	case len(results) == 0:
		return field("file", "must be a part of the form")
	case len(results) == 1 && first != nil:
		return first // the published command line looks at nothing but the status
	}
	return c.answer(http.StatusOK, map[string]any{"success": ok, "results": results})
}

// put writes a file as it comes and answers once it is there, with what was found there.
func (c *call) put(p place, at, name string, part *multipart.Part) (*uploaded, error) {
	bad := map[string]string{}
	mode, modified := content.Kept(c.r.URL.Query(), part.Header, bad)
	if err := invalid(bad); err != nil {
		return nil, err
	}
	w, err := c.use.PutFile(c.ctx, c.p, "", usecase.Upload{Sandbox: p.id, Path: at, Mode: mode, ModifiedAt: modified}, part)
	if err != nil {
		return nil, err
	}
	return &uploaded{Success: true, Name: name, Path: at, Size: w.Size, SHA256: hex.EncodeToString(w.SHA256)}, nil
}
