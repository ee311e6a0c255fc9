package sandboxapi

import (
	"mime"
	"net/http"
	"path"
	"strconv"

	"github.com/sandtrail/sandtrail/services/gateway/internal/content"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	mediaTar = "application/x-tar"
	// trailerSkipped is how many entries an archive lacks, told behind it.
	trailerSkipped = "X-Skipped-Entries"
)

// held is the memory that a call takes piece by piece.
type held struct {
	c *call
	n int
}

// hold takes n bytes, or gives them back below 0.
func (h *held) hold(n int) bool {
	if n > 0 && !h.c.memory.Take(n) {
		return false
	}
	if n < 0 {
		h.c.memory.Give(-n)
	}
	h.n += n
	return true
}

func (h *held) release() { h.c.memory.Give(h.n) }

// skipped is an entry of an archive that was left out.
type skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// unpacked is what has come of an archive.
type unpacked struct {
	Success     bool   `json:"success"`
	Path        string `json:"path"`
	Files       int    `json:"files"`
	Directories int    `json:"directories"`
	Links       int    `json:"links"`
	// Bytes of the files.
	Bytes int64 `json:"bytes"`
	// Skipped are the first hundred, SkippedCount how many there are in all.
	Skipped      []skipped `json:"skipped"`
	SkippedCount int       `json:"skipped_count"`
}

// uploadTree unpacks the body, a tar archive, into a directory, the workspace where none is named.
func (c *call) uploadTree() error {
	body := content.NewBody(c.w, c.r, c.opt.BodyTime)
	err := c.unpack(body)
	body.Done(err)
	return err
}

func (c *call) unpack(body *content.Body) error {
	p, dir, err := c.directory()
	if err != nil {
		return err
	}
	h := &held{c: c}
	defer h.release()
	if !h.hold(usecase.TreeBytes) {
		return edge.Busy()
	}
	u, err := c.use.PutTree(c.ctx, c.p, usecase.Tree{Sandbox: p.id, Path: dir, Hold: h.hold}, body)
	if err != nil {
		return err
	}
	out := unpacked{
		Success: true, Path: dir, Files: u.Files, Directories: u.Directories, Links: u.Links, Bytes: u.Bytes, SkippedCount: u.Left, Skipped: []skipped{},
	}
	for _, s := range u.Skipped {
		out.Skipped = append(out.Skipped, skipped{s.Name, s.Why})
	}
	return c.answer(http.StatusOK, out)
}

// directory is the parameter path of a route that takes the workspace where there is none.
func (c *call) directory() (place, string, error) {
	p, err := c.place()
	if err != nil {
		return p, "", err
	}
	if c.r.URL.Query().Get("path") == "" {
		return p, p.root, nil
	}
	dir, err := c.param("path")
	return p, p.abs(dir), err
}

// downloadTree answers a directory as a tar archive. Where it fails in the middle the connection is cut.
func (c *call) downloadTree() error {
	p, dir, err := c.directory()
	if err != nil {
		return err
	}
	h := &held{c: c}
	defer h.release()
	if !h.hold(usecase.TreeBytes) {
		return edge.Busy()
	}
	w := &treeWriter{call: c, name: path.Base(dir), to: content.NewWriter(c.w)}
	left, err := c.use.GetTree(c.ctx, c.p, usecase.Tree{Sandbox: p.id, Path: dir, Hold: h.hold}, w)
	if err == nil {
		c.w.Header().Set(trailerSkipped, strconv.Itoa(left))
	}
	return err
}

// treeWriter begins the answer with the archive's first bytes, so that what fails before them is told as an error.
type treeWriter struct {
	*call
	name string
	to   *content.Writer
}

func (t *treeWriter) Write(b []byte) (int, error) {
	if t.Status == 0 {
		t.Begin(http.StatusOK, mediaTar)
		t.w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": t.name + ".tar"}))
		t.w.Header().Set("Trailer", trailerSkipped)
		t.w.WriteHeader(http.StatusOK)
	}
	return t.to.Write(b)
}
