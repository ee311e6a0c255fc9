package sandboxapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

const (
	mediaJSON  = "application/json"
	mediaBytes = "application/octet-stream"
	mediaText  = "text/plain; charset=utf-8"
	mediaSSE   = "text/event-stream; charset=utf-8"
)

// maxBody is the most bytes of a JSON body: 512 KiB of stdin in which JSON escapes every byte, and the rest.
const maxBody = 4 << 20

// answer writes a JSON document. The client has writeTime to take it.
func (c *call) answer(status int, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fault.From(err)
	}
	return c.write(status, mediaJSON, b.Bytes())
}

func (c *call) write(status int, media string, body []byte) error {
	c.begin(status, media)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body) // the reader is gone if this fails
	return nil
}

func (c *call) begin(status int, media string) {
	c.status = status
	c.w.Header().Set("Content-Type", media)
	_ = c.rc.SetWriteDeadline(time.Now().Add(writeTime)) // one that cannot be set does not bound, and the write fails by itself
}

// problem is the body of a failed call: message is all that the published clients read.
type problem struct {
	Message string             `json:"message"`
	Error   fault.ProblemError `json:"error"`
}

// fail answers an error, unless an answer has begun: then the connection is cut, so that nobody takes half of it for the whole.
func (c *call) fail(err error) {
	if c.status != 0 {
		if !c.clientGone() {
			panic(http.ErrAbortHandler)
		}
		return
	}
	status, p := fault.HTTP(err, telemetry.Correlation(c.ctx))
	h := c.w.Header()
	if p.Error.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(p.Error.RetryAfterSeconds)))
	}
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest:
		h.Set("Connection", "close") // what else comes on it is not known to be a request
	}
	_ = c.answer(status, problem{Message: sentence(p.Error), Error: p.Error}) // a problem always encodes
}

// sentence is the message with what is wrong with each field, for clients that show nothing else.
func sentence(e fault.ProblemError) string {
	parts := make([]string, 0, len(e.Fields))
	for _, f := range e.Fields {
		parts = append(parts, f.Field+" "+f.Message)
	}
	if len(parts) == 0 {
		return e.Message
	}
	return e.Message + ": " + strings.Join(parts, "; ")
}

func invalid(bad map[string]string) error {
	if len(bad) == 0 {
		return nil
	}
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(bad)
}

func field(name, what string) error { return invalid(map[string]string{name: what}) }

func malformed(what string) error {
	return fault.New(fault.InvalidArgument, fault.ReasonMalformed, "the body cannot be read: "+what)
}

// object reads a JSON body into v. Fields that v has not are left out, as the published API does: its clients send more from version to
// version. An empty body leaves v as it is.
func (c *call) object(v any) error {
	// It stays where the body does not end: the server reads on behind the answer, and would wait for a sender who has stopped.
	_ = c.rc.SetReadDeadline(time.Now().Add(bodyTime))
	size := maxBody
	if n := c.r.ContentLength; n >= 0 && n < maxBody {
		size = int(n)
	}
	if !c.memory.Take(size) {
		return busy()
	}
	defer c.memory.Give(size)
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if err == nil {
		_ = c.rc.SetReadDeadline(time.Time{})
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "the body has more than the %d bytes that this route takes", maxBody)
	case err != nil:
		return malformed("its end did not come")
	case len(bytes.TrimSpace(body)) == 0:
		return nil
	}
	var wrong *json.UnmarshalTypeError
	err = json.Unmarshal(body, v)
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return field(wrong.Field, "must be of another type: "+wrong.Type.String())
	case err != nil:
		return malformed("it is no JSON object of this route's form")
	}
	return nil
}

func busy() error {
	return fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again").WithRetry(time.Second)
}
