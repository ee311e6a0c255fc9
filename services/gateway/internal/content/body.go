// Package content moves the bytes of files between clients of HTTP and the use cases, for each API alike: bodies that may take their time,
// and answers that are a file or a range of one.
package content

import (
	"errors"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"time"

	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

// leastPart must have come of a body each time that the gateway waited as long for it as a client may take, or the rest of it: who sends a
// byte now and then holds no connection for hours. In bytes.
const leastPart = 64 << 10

// Body is a body that may take any time as long as it comes on: only silence ends it.
type Body struct {
	w        http.ResponseWriter
	r        *http.Request
	rc       *http.ResponseController
	patience time.Duration
	// part is what has come of the present part, waited how long that took.
	part   int64
	waited time.Duration
	// over: its end came, or never will.
	over bool
}

// NewBody reads the body of r, of which 64 KiB, or the rest, come within patience.
func NewBody(w http.ResponseWriter, r *http.Request, patience time.Duration) *Body {
	return &Body{w: w, r: r, rc: http.NewResponseController(w), patience: patience}
}

// Read fails with a fault where the body comes too slowly, or its end does not.
func (b *Body) Read(p []byte) (int, error) {
	asked := time.Now()
	_ = b.rc.SetReadDeadline(asked.Add(b.patience - b.waited)) // one that cannot be set does not bound; the server's own does
	n, err := b.r.Body.Read(p)
	b.part, b.waited = b.part+int64(n), b.waited+time.Since(asked)
	if b.part >= leastPart {
		b.part, b.waited = 0, 0
	}
	var timeout net.Error
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.over = true
		return n, io.EOF
	case errors.As(err, &timeout) && timeout.Timeout():
		b.over = true
		return n, edge.Malformed("the body cannot be read: it came too slowly")
	default:
		b.over = true
		return n, edge.Malformed("the body cannot be read: the end of it did not come")
	}
}

// Multipart reads a form from body, as the header of r says how. It fails where r has no form.
func Multipart(r *http.Request, body *Body) (*multipart.Reader, error) {
	form := &http.Request{Header: r.Header, Body: io.NopCloser(body)}
	return form.MultipartReader()
}

// Done is called once with the outcome of the call, before it is told where it is an error: a sender who is still at it then comes to read
// it. Where the body did not end, the deadline stays: the server reads on behind the answer, and would wait for a sender who has stopped.
func (b *Body) Done(err error) {
	switch {
	case !b.over:
		_ = b.rc.SetReadDeadline(time.Now().Add(b.patience))
		edge.Drain(b.r)
	case err == nil:
		_ = b.rc.SetReadDeadline(time.Time{})
	}
}
