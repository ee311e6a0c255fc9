package httpapi

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// checkQuery refuses a request that was made of parameters, and what else is wrong with them.
func (c *call) checkQuery(m proto.Message, more ...map[string]string) error {
	bad, err := c.Violations(m)
	if err != nil {
		return err
	}
	for _, m := range more {
		maps.Copy(bad, m)
	}
	return invalid(bad)
}

type written struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
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
	// NextCursor is empty on the last page.
	NextCursor string `json:"next_cursor"`
}

// maxEntries is the most entries of a page of a directory.
const maxEntries = 1000

// listFiles lists a page of a directory.
func (c *call) listFiles() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	query, bad := c.r.URL.Query(), map[string]string{}
	limit := maxEntries
	if query.Has("limit") {
		if limit, err = strconv.Atoi(query.Get("limit")); err != nil || limit < 1 || limit > maxEntries {
			bad["limit"] = fmt.Sprintf("must be an integer from 1 to %d", maxEntries)
		}
	}
	after, err := base64.RawURLEncoding.Strict().DecodeString(query.Get("cursor"))
	if err != nil || len(after) > 255 {
		bad["cursor"] = "is not a cursor that a list gave"
	}
	if err := c.checkQuery(&computev1.ListFilesRequest{SandboxId: id, Path: query.Get("path")}, bad); err != nil {
		return err
	}
	entries, next, err := c.use.ListPage(c.ctx, c.p, id, query.Get("path"), uint32(limit), after) //nolint:gosec // checked above
	if err != nil {
		return err
	}
	out := fileList{Entries: []fileEntry{}, Truncated: len(next) > 0, NextCursor: base64.RawURLEncoding.EncodeToString(next)}
	for _, f := range entries {
		e := fileEntry{Path: f.GetPath(), Size: f.GetSize(), IsDir: f.GetIsDir(), Mode: fmt.Sprintf("%04o", f.GetMode()), LinkTarget: f.GetLinkTarget()}
		if f.GetModifiedAt() != nil {
			e.ModifiedAt = at(f.GetModifiedAt().AsTime())
		}
		out.Entries = append(out.Entries, e)
	}
	return c.answer(http.StatusOK, out)
}

type deleted struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
}

// deleteFile removes a file, or a directory.
func (c *call) deleteFile() error {
	id, err := c.sandbox()
	if err == nil {
		err = c.none()
	}
	if err != nil {
		return err
	}
	query, bad := c.r.URL.Query(), map[string]string{}
	recursive := query.Get("recursive")
	if query.Has("recursive") && recursive != "true" && recursive != "false" {
		bad["recursive"] = "must be true or false"
	}
	path := query.Get("path")
	if err := c.checkQuery(&computev1.ReadFileRequest{SandboxId: id, Path: path}, bad); err != nil {
		return err
	}
	if err := c.use.DeleteFile(c.ctx, c.p, c.key, id, path, recursive == "true"); err != nil {
		return err
	}
	return c.answer(http.StatusOK, deleted{Success: true, Path: path})
}
