package content

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	// HeaderMode has the permission bits of a file, octal; HeaderModified its time of modification, RFC 3339 to the nanosecond.
	HeaderMode, HeaderModified = "X-File-Mode", "X-File-Modified"

	mediaBytes = "application/octet-stream"
	// readAgain is how often a file that changes just now is tried.
	readAgain = 5
)

// Answer is a file that is asked for, or a range of it.
type Answer struct {
	*edge.Reply
	W http.ResponseWriter
	R *http.Request
	// Memory holds one part while the file is read.
	Memory stored.Share
	// Sandbox and Path go into the tag of the file.
	Sandbox, Path string
	// Open tells of the file, with its digest where that is asked for.
	Open func(ctx context.Context, digest bool) (*usecase.Reading, error)
}

// Send answers the file as bytes. One that changes meanwhile ends with a connection that is cut.
func (a *Answer) Send(ctx context.Context) (err error) {
	for range readAgain {
		if err = a.version(ctx); a.Status != 0 || !fault.Is(err, fault.ReasonConflict) || fault.CodeOf(err) != fault.Conflict {
			break // a file that changed before anything of it was sent is read as it is now
		}
	}
	return err
}

func (a *Answer) version(ctx context.Context) error {
	f, err := a.Open(ctx, wantsDigest(a.R.Header))
	if err != nil {
		return err
	}
	tag := a.describe(f)
	if list := a.R.Header.Get("If-None-Match"); list != "" && matches(list, tag) {
		a.Status = http.StatusNotModified
		a.W.WriteHeader(http.StatusNotModified)
		return nil
	}
	part, status := span{0, f.Size}, http.StatusOK
	if a.ranged(tag) {
		asked, partial, ok := rangeOf(a.R.Header.Get("Range"), f.Size)
		if !ok {
			a.W.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", f.Size))
			return fault.Newf(fault.InvalidArgument, fault.ReasonRange, "the file has %d bytes", f.Size)
		}
		if part = asked; partial {
			status = http.StatusPartialContent
			a.W.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.from+part.length-1, f.Size))
		}
	}
	return a.file(ctx, f, part, status)
}

// describe sets what the header says of a file, and gives its tag.
func (a *Answer) describe(f *usecase.Reading) (tag string) {
	h := a.W.Header()
	if tag = etag(a.Sandbox, a.Path, f.Version, f.Unsettled); tag != "" {
		h.Set("ETag", tag)
		h.Set("Accept-Ranges", "bytes")
	}
	if f.SHA256 != nil {
		h.Set("Repr-Digest", DigestHeader(f.SHA256))
	}
	if !f.ModifiedAt.IsZero() {
		h.Set("Last-Modified", f.ModifiedAt.UTC().Format(http.TimeFormat))
		h.Set(HeaderModified, f.ModifiedAt.UTC().Format(time.RFC3339Nano))
	}
	if f.Mode != 0 {
		h.Set(HeaderMode, fmt.Sprintf("%04o", f.Mode))
	}
	return tag
}

// ranged reports whether a Range header counts: not beside an If-Range that names another version, or one that promises too little. Without a
// tag a later part could be of another file.
func (a *Answer) ranged(tag string) bool {
	condition := a.R.Header.Get("If-Range")
	return tag != "" && a.R.Method == http.MethodGet && len(a.R.Header["Range"]) == 1 && (condition == "" || condition == tag && tag[0] == '"')
}

func (a *Answer) file(ctx context.Context, f *usecase.Reading, part span, status int) error {
	if !a.Memory.Take(usecase.PartBytes) {
		return edge.Busy()
	}
	defer a.Memory.Give(usecase.PartBytes)
	var first []byte
	if part.length > 0 && a.R.Method != http.MethodHead {
		var err error // told as an error as long as it can be
		if first, err = f.Part(ctx, part.from, part.length); err != nil {
			return err
		}
	}
	a.Begin(status, mediaBytes)
	a.W.Header().Set("Content-Length", strconv.FormatInt(part.length, 10))
	a.W.WriteHeader(status)
	if a.R.Method == http.MethodHead {
		return nil
	}
	w := NewWriter(a.W)
	for sent := int64(0); sent < part.length; {
		data := first
		if first = nil; data == nil {
			var err error
			if data, err = f.Part(ctx, part.from+sent, part.length-sent); err != nil {
				return err
			}
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
		sent += int64(len(data))
	}
	return nil
}

// Writer writes a body that may take any time as long as the client takes each piece of it within edge.WriteTime.
type Writer struct {
	http.ResponseWriter
	rc *http.ResponseController
}

// NewWriter writes to w.
func NewWriter(w http.ResponseWriter) *Writer { return &Writer{w, http.NewResponseController(w)} }

// Unwrap lets a http.ResponseController through.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write writes one piece.
func (w *Writer) Write(p []byte) (int, error) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(edge.WriteTime)) // one that cannot be set does not bound, and the write fails by itself
	return w.ResponseWriter.Write(p)
}
