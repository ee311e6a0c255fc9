package httpapi

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	// maxFile is the most bytes of a file that is written in one call; the workspace's size comes before it.
	maxFile = 1 << 40
	// uploadTime is the longest that one upload takes, and download one download; within it only silence ends them.
	uploadTime, downloadTime = 2 * time.Hour, 2 * time.Hour
	// readAgain is how often a file that changes just now is tried.
	readAgain = 5
)

// fileRequest is the path of a file, checked by the contract's own rules.
func (c *call) fileRequest() (id, path string, err error) {
	if id, err = c.sandbox(); err != nil {
		return "", "", err
	}
	path = c.r.URL.Query().Get("path")
	return id, path, c.checkQuery(&computev1.ReadFileRequest{SandboxId: id, Path: path})
}

// readFile answers a file, or a range of it, as bytes. One that changes meanwhile ends with a connection that is cut.
func (c *call) readFile() error {
	id, path, err := c.fileRequest()
	if err != nil {
		return err
	}
	for range readAgain {
		if err = c.readVersion(id, path); c.Status != 0 || !fault.Is(err, fault.ReasonConflict) || fault.CodeOf(err) != fault.Conflict {
			break // a file that changed before anything of it was sent is read as it is now
		}
	}
	return err
}

func (c *call) readVersion(id, path string) error {
	f, err := c.use.OpenFile(c.ctx, c.p, id, path, wantsDigest(c.r.Header))
	if err != nil {
		return err
	}
	h := c.w.Header()
	tag := etag(id, path, f.Version, f.Unsettled)
	if tag != "" {
		h.Set("ETag", tag)
		h.Set("Accept-Ranges", "bytes")
	}
	if f.SHA256 != nil {
		h.Set("Repr-Digest", digestHeader(f.SHA256))
	}
	if !f.ModifiedAt.IsZero() {
		h.Set("Last-Modified", f.ModifiedAt.UTC().Format(http.TimeFormat))
	}
	if list := c.r.Header.Get("If-None-Match"); list != "" && matches(list, tag) {
		c.Status = http.StatusNotModified
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	part, status := span{0, f.Size}, http.StatusOK
	if c.ranged(tag) {
		asked, partial, ok := rangeOf(c.r.Header.Get("Range"), f.Size)
		if !ok {
			h.Set("Content-Range", fmt.Sprintf("bytes */%d", f.Size))
			return fault.Newf(fault.InvalidArgument, fault.ReasonRange, "the file has %d bytes", f.Size)
		}
		if part = asked; partial {
			status = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.from+part.length-1, f.Size))
		}
	}
	return c.sendFile(f, part, status)
}

// ranged reports whether a Range header counts: not beside an If-Range that names another version, or one that promises too little. Without a
// tag a later part could be of another file.
func (c *call) ranged(tag string) bool {
	condition := c.r.Header.Get("If-Range")
	return tag != "" && c.r.Method == http.MethodGet && len(c.r.Header["Range"]) == 1 && (condition == "" || condition == tag && tag[0] == '"')
}

func (c *call) sendFile(f *usecase.Reading, part span, status int) error {
	if !c.memory.Take(usecase.PartBytes) {
		return edge.Busy()
	}
	defer c.memory.Give(usecase.PartBytes)
	var first []byte
	if part.length > 0 && c.r.Method != http.MethodHead {
		var err error // told as an error as long as it can be
		if first, err = f.Part(c.ctx, part.from, part.length); err != nil {
			return err
		}
	}
	c.Begin(status, mediaBytes)
	c.w.Header().Set("Content-Length", strconv.FormatInt(part.length, 10))
	c.w.WriteHeader(status)
	if c.r.Method == http.MethodHead {
		return nil
	}
	end := time.Now().Add(downloadTime)
	for sent := int64(0); sent < part.length; {
		data := first
		if first = nil; data == nil {
			var err error
			if data, err = f.Part(c.ctx, part.from+sent, part.length-sent); err != nil {
				return err
			}
		}
		_ = c.rc.SetWriteDeadline(earlier(time.Now().Add(edge.WriteTime), end))
		if _, err := c.w.Write(data); err != nil {
			return err
		}
		sent += int64(len(data))
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// writeFile makes the body the content of a file, at once, whatever its size.
func (c *call) writeFile() error {
	body := &slowBody{call: c, end: time.Now().Add(uploadTime)}
	err := c.putFile(body)
	switch {
	case err == nil:
		_ = c.rc.SetReadDeadline(time.Time{})
	case !body.over:
		// The deadline stays: the server reads on behind the answer, and would wait for a sender who has stopped.
		_ = c.rc.SetReadDeadline(time.Now().Add(c.opt.BodyTime))
		edge.Drain(c.r)
	}
	return err
}

func (c *call) putFile(body io.Reader) error {
	id, path, err := c.fileRequest()
	if err != nil {
		return err
	}
	bad := map[string]string{}
	digests := sent(c.r.Header, bad)
	mode := c.mode(bad)
	if c.r.Header.Get("Content-Range") != "" || c.r.Header.Get("Content-Encoding") != "" {
		bad["content-range"] = "a file is written whole, as it is"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	if c.r.ContentLength > maxFile {
		return edge.TooLarge(maxFile)
	}
	if !c.memory.Take(2 * usecase.PartBytes) {
		return edge.Busy()
	}
	defer c.memory.Give(2 * usecase.PartBytes)
	w, err := c.use.PutFile(c.ctx, c.p, c.key, usecase.Upload{
		Sandbox: id, Path: path, Mode: mode,
		Check: func(sum []byte, size int64) error {
			if name := differs(digests, sum); name != "" {
				return fault.New(fault.InvalidArgument, fault.ReasonDigest, "the body is not the one that the digest is of; nothing was written").
					WithFields(map[string]string{name: fmt.Sprintf("of the %d bytes that came it is %s", size, digestHeader(sum))})
			}
			return nil
		},
	}, body)
	if err != nil {
		return err
	}
	c.w.Header().Set("Repr-Digest", digestHeader(w.SHA256))
	return c.answer(http.StatusOK, written{Success: true, Path: path, Size: w.Size, SHA256: hex.EncodeToString(w.SHA256)})
}

// mode reads the permissions that a file is to have.
func (c *call) mode(bad map[string]string) uint32 {
	text := c.r.URL.Query().Get("mode")
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 8, 9)
	if err != nil || n == 0 {
		bad["mode"] = "must be octal such as 0644"
	}
	return uint32(n)
}

// leastPart must have come of a body each Options.BodyTime that the gateway waits for it, or the rest of it: who sends a byte now and then
// holds no connection for hours.
const leastPart = 64 << 10

// slowBody is a body that may take its time as long as it comes on.
type slowBody struct {
	*call
	end  time.Time
	read int64
	// part is what has come of the present part, waited how long that took.
	part   int64
	waited time.Duration
	// over: its end came, or never will.
	over bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	asked := time.Now()
	_ = b.rc.SetReadDeadline(earlier(asked.Add(b.opt.BodyTime-b.waited), b.end))
	n, err := b.r.Body.Read(p)
	b.read, b.part, b.waited = b.read+int64(n), b.part+int64(n), b.waited+time.Since(asked)
	if b.part >= leastPart {
		b.part, b.waited = 0, 0
	}
	var timeout net.Error
	switch {
	case b.read > maxFile:
		return 0, edge.TooLarge(maxFile)
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.over = true
		return n, io.EOF
	case errors.As(err, &timeout) && timeout.Timeout():
		b.over = true
		return n, malformed("it came too slowly")
	default:
		b.over = true
		return n, malformed("the end of the body did not come")
	}
}
