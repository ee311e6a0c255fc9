package sandboxapi

import (
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

const (
	// maxFile is the most bytes of a file that is uploaded, maxFiles how many come in one request.
	maxFile, maxFiles = 16 << 20, 100
	// uploadIdle is how long a client may send nothing of an upload, uploadTime how long one file may take.
	uploadIdle, uploadTime = 30 * time.Second, 2 * time.Minute
)

// uploaded says of a file that it is there.
type uploaded struct {
	Success bool   `json:"success"`
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256,omitempty"`
	Error   string `json:"error,omitempty"`
}

// parts reads the files of a multipart body one after the other. each gets a part's field name, its file name without directories, and data.
func (c *call) parts(each func(name, file string, data io.Reader) (more bool, err error)) (err error) {
	r, err := c.r.MultipartReader()
	if err != nil {
		return fault.New(fault.InvalidArgument, fault.ReasonMediaType, "send the file as `Content-Type: multipart/form-data`")
	}
	defer func() {
		if err == nil { // else as in object
			_ = c.rc.SetReadDeadline(time.Time{})
		}
	}()
	for range maxFiles {
		c.patient(time.Now().Add(uploadIdle))
		part, err := r.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return malformed("it is no multipart form, or its end did not come")
		}
		more, err := each(part.FormName(), base(part), &patientReader{c, part, time.Now().Add(uploadTime)})
		_ = part.Close() // what is left of it is skipped
		if err != nil || !more {
			return err
		}
	}
	return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "one request has at most %d files", maxFiles-1)
}

// base is the last element of a part's file name; clients of all systems send whole paths.
func base(p *multipart.Part) string {
	name := p.FileName()
	return name[strings.LastIndexByte(name, '\\')+1:]
}

// patient gives the client more time to send something, up to end.
func (c *call) patient(end time.Time) {
	if idle := time.Now().Add(uploadIdle); idle.Before(end) {
		end = idle
	}
	_ = c.rc.SetReadDeadline(end)
}

// patientReader fails where nothing comes for too long, and not where much does.
type patientReader struct {
	c   *call
	r   io.Reader
	end time.Time
}

func (p *patientReader) Read(b []byte) (int, error) {
	p.c.patient(p.end)
	return p.r.Read(b)
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
	err = c.parts(func(name, file string, data io.Reader) (bool, error) {
		if name != "file" {
			return true, nil
		}
		at := p.abs(to)
		if strings.HasSuffix(to, "/") || c.isDir(p, at) {
			if file == "" || file == "." || file == ".." || file == "/" {
				return false, field("file", "must have a file name where path is a directory")
			}
			at = path.Join(at, file)
		}
		done, err = c.put(p, at, file, data)
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
	err = c.parts(func(name, file string, data io.Reader) (bool, error) {
		if file == "" {
			return true, nil // no file, a plain field of the form
		}
		if name == "" || name == "file" || name == "files" {
			name = file
		}
		if strings.Contains(name, "..") || path.IsAbs(name) {
			name = path.Base(name)
		}
		done, err := c.put(p, path.Join(p.abs(dir), name), name, data)
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

// put writes a file and answers once it is there, with what was found there.
func (c *call) put(p place, at, name string, data io.Reader) (*uploaded, error) {
	body, held, err := edge.Gather(data, maxFile, -1, c.memory)
	defer func() { c.memory.Give(held) }()
	var busy *fault.Error
	switch {
	case errors.As(err, &busy):
		return nil, busy
	case err != nil:
		return nil, malformed("the end of the file did not come")
	case len(body) > maxFile:
		return nil, fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "the file has more than the %d bytes that are taken", maxFile)
	}
	w, err := c.use.WriteFile(c.ctx, c.p, "", &computev1.WriteFileRequest{SandboxId: p.id, Path: at, Data: body})
	if err != nil {
		return nil, err
	}
	return &uploaded{Success: true, Name: name, Path: at, Size: w.Size, SHA256: hex.EncodeToString(w.SHA256)}, nil
}
