package httpapi

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxFile is the most bytes of a file that is written in one call.
	maxFile = 16 << 20
	// filePart is how much of a file is read at once.
	filePart = 4 << 20
)

// readFile answers a file as bytes. One that gets shorter meanwhile ends with a connection that is cut.
func (c *call) readFile() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	req := &computev1.ReadFileRequest{SandboxId: id, Path: c.r.URL.Query().Get("path")}
	if err := c.checkQuery(req); err != nil {
		return err
	}
	if !c.memory.Take(filePart) {
		return fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again").WithRetry(time.Second)
	}
	defer c.memory.Give(filePart)
	var size, sent int64
	for {
		data, total, eof, err := c.use.ReadFile(c.ctx, c.p, id, req.GetPath(), sent, filePart)
		if err != nil {
			return err
		}
		if c.status == 0 {
			size = total
			c.begin(http.StatusOK, mediaBytes)
			c.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
			c.w.WriteHeader(http.StatusOK)
		}
		data = data[:min(int64(len(data)), size-sent)]
		_ = c.rc.SetWriteDeadline(time.Now().Add(writeTime))
		if _, err := c.w.Write(data); err != nil {
			return err
		}
		sent += int64(len(data))
		switch {
		case sent == size:
			return nil
		case eof || len(data) == 0:
			return fault.New(fault.Conflict, fault.ReasonConflict, "the file got shorter while it was read")
		}
	}
}

// checkQuery refuses a request that was made of parameters.
func (c *call) checkQuery(m proto.Message) error {
	bad, err := c.Violations(m)
	if err != nil {
		return err
	}
	return invalid(bad)
}

type written struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
}

// writeFile makes the body the content of a file, at once.
func (c *call) writeFile() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	req := &computev1.WriteFileRequest{SandboxId: id, Path: c.r.URL.Query().Get("path")}
	if err := c.checkQuery(req); err != nil {
		return err
	}
	data, release, err := c.read(maxFile, "")
	defer release()
	if err != nil {
		return err
	}
	req.Data = data
	w, err := c.use.WriteFile(c.ctx, c.p, c.key, req)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, written{Success: true, Path: req.GetPath(), Size: w.Size, SHA256: hex.EncodeToString(w.SHA256)})
}

type writtenAll struct {
	Success bool      `json:"success"`
	Files   []written `json:"files"`
}

// writeFiles is the older form: several files in one body. All are checked before any is written; one that fails ends it, and those
// before it are there.
func (c *call) writeFiles() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	o, release, err := c.object(maxUpload)
	defer release()
	if err != nil {
		return err
	}
	files := o.uploads("files")
	var requests []*computev1.WriteFileRequest
	for i, f := range files {
		req := &computev1.WriteFileRequest{SandboxId: id, Path: f.Path, Data: f.Data}
		broken, err := c.Violations(req)
		if err != nil {
			return err
		}
		for path, what := range broken {
			if at := fmt.Sprintf("files[%d].%s", i, (names{"data": "content"}).of(path)); o.bad[at] == "" {
				o.bad[at] = what
			}
		}
		requests = append(requests, req)
	}
	if err := o.err(); err != nil {
		return err
	}
	out := writtenAll{Success: true, Files: []written{}}
	for i, req := range requests {
		key := c.key
		if key != "" {
			if key = fmt.Sprintf("%s/%d", c.key, i); len(key) > 200 {
				return invalid(map[string]string{"idempotency-key": "must leave room for the number of a file: at most 196 characters"})
			}
		}
		w, err := c.use.WriteFile(c.ctx, c.p, key, req)
		if err != nil {
			return err
		}
		out.Files = append(out.Files, written{Success: true, Path: req.GetPath(), Size: w.Size, SHA256: hex.EncodeToString(w.SHA256)})
	}
	return c.answer(http.StatusOK, out)
}

type fileEntry struct {
	Path       string     `json:"path"`
	Size       uint64     `json:"size"`
	IsDir      bool       `json:"is_dir"`
	Mode       string     `json:"mode"`
	ModifiedAt *time.Time `json:"modified_at"`
	LinkTarget string     `json:"link_target,omitempty"`
}

type fileList struct {
	Entries []fileEntry `json:"entries"`
	// Truncated: there are more than are shown.
	Truncated bool `json:"truncated"`
}

// listFiles lists a directory.
func (c *call) listFiles() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	req := &computev1.ListFilesRequest{SandboxId: id, Path: c.r.URL.Query().Get("path")}
	if err := c.checkQuery(req); err != nil {
		return err
	}
	entries, truncated, err := c.use.ListFiles(c.ctx, c.p, id, req.GetPath(), false, 0)
	if err != nil {
		return err
	}
	out := fileList{Entries: []fileEntry{}, Truncated: truncated}
	for _, f := range entries {
		e := fileEntry{Path: f.GetPath(), Size: f.GetSize(), IsDir: f.GetIsDir(), Mode: fmt.Sprintf("%04o", f.GetMode()), LinkTarget: f.GetLinkTarget()}
		if f.GetModifiedAt() != nil {
			e.ModifiedAt = at(f.GetModifiedAt().AsTime())
		}
		out.Entries = append(out.Entries, e)
	}
	return c.answer(http.StatusOK, out)
}
