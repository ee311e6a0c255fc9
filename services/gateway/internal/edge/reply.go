package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

// WriteTime is how long a client may take to read what was written to it at once.
const WriteTime = 30 * time.Second

// MediaJSON is the type of documents and of problems.
const MediaJSON = "application/json"

// Reply is the answer to one call of an HTTP API.
type Reply struct {
	w  http.ResponseWriter
	rc *http.ResponseController
	// Status is what was answered; 0 until then.
	Status int
}

// NewReply makes one that has not begun.
func NewReply(w http.ResponseWriter) *Reply { return &Reply{w: w, rc: http.NewResponseController(w)} }

// Begin decides status and type; the caller writes the header next. The client has WriteTime for what comes first.
func (a *Reply) Begin(status int, media string) {
	a.Status = status
	a.w.Header().Set("Content-Type", media)
	_ = a.rc.SetWriteDeadline(time.Now().Add(WriteTime)) // one that cannot be set does not bound, and the write fails by itself
}

// Whole answers with all of a body at once.
func (a *Reply) Whole(status int, media string, body []byte) error {
	a.Begin(status, media)
	a.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	a.w.WriteHeader(status)
	_, _ = a.w.Write(body) // the reader is gone if this fails
	return nil
}

// JSON answers with a document. It fails, with nothing answered, for a value that is none.
func (a *Reply) JSON(status int, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fault.From(err)
	}
	return a.Whole(status, MediaJSON, b.Bytes())
}

// Event sends a piece of a stream of events, at once. The first begins the answer, so that what fails before it is told as an error.
func (a *Reply) Event(media string, piece []byte) error {
	if a.Status == 0 {
		a.Begin(http.StatusOK, media)
		a.w.Header().Set("X-Accel-Buffering", "no")
		a.w.WriteHeader(http.StatusOK)
	}
	_ = a.rc.SetWriteDeadline(time.Now().Add(WriteTime))
	if _, err := a.w.Write(piece); err != nil {
		return err
	}
	return a.rc.Flush()
}

// Refuse answers err in the form that the API gives to problems, with challenge where a credential is missing. Where an answer has begun
// the connection is cut instead, so that nobody takes half of it for the whole.
func (a *Reply) Refuse(ctx context.Context, r *http.Request, err error, challenge string, form func(fault.Problem) any) {
	if a.Status != 0 {
		if !errors.Is(r.Context().Err(), context.Canceled) { // else nobody is there any more
			panic(http.ErrAbortHandler)
		}
		return
	}
	status, problem := fault.HTTP(err, telemetry.Correlation(ctx))
	h := a.w.Header()
	if seconds := problem.Error.RetryAfterSeconds; seconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", challenge)
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest:
		h.Set("Connection", "close") // what else comes on it is not known to be a request
	}
	_ = a.JSON(status, form(problem)) // a problem always encodes
}

// Invalid is the fault of a request whose fields or parameters are wrong, nil where none is.
func Invalid(bad map[string]string) error {
	if len(bad) == 0 {
		return nil
	}
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(bad)
}

// Malformed is the fault of a body that cannot be read at all.
func Malformed(what string) error {
	return fault.New(fault.InvalidArgument, fault.ReasonMalformed, what)
}

// TooLarge is the fault of a body over the bytes that its route takes.
func TooLarge(most int64) error {
	return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "the body has more than the %d bytes that this route takes", most)
}

// Busy is the fault of a call for which there is no memory left, or none of its tenant's share.
func Busy() error {
	return fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again").WithRetry(time.Second)
}
