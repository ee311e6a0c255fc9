package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

const (
	mediaJSON  = "application/json"
	mediaBytes = "application/octet-stream"
	mediaSSE   = "text/event-stream"
)

// answer writes a JSON document. The client has writeTime to take it.
func (c *call) answer(status int, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fault.From(err)
	}
	c.begin(status, mediaJSON)
	c.w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	c.w.WriteHeader(status)
	_, _ = c.w.Write(b.Bytes()) // the reader is gone if this fails
	return nil
}

func (c *call) begin(status int, media string) {
	c.status = status
	c.w.Header().Set("Content-Type", media)
	_ = c.rc.SetWriteDeadline(time.Now().Add(writeTime)) // one that cannot be set does not bound, and the write fails by itself
}

// fail answers an error, unless an answer has begun: then the connection is cut, so that nobody takes half of it for the whole.
func (c *call) fail(err error) {
	if c.status != 0 {
		if !c.clientGone() {
			panic(http.ErrAbortHandler)
		}
		return
	}
	status, problem := fault.HTTP(err, telemetry.Correlation(c.ctx))
	h := c.w.Header()
	if problem.Error.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(problem.Error.RetryAfterSeconds)))
	}
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "ApiKey")
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest:
		h.Set("Connection", "close") // what else comes on it is not known to be a request
	}
	_ = c.answer(status, problem) // a problem always encodes
}

// read gives the body, at most the route's bytes, and what to call once it is not needed any more. It counts in the memory of all
// requests.
func (c *call) read(limit int64, media string) (body []byte, release func(), err error) {
	release = func() {}
	if media != "" {
		if err := c.typed(media); err != nil {
			return nil, release, err
		}
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(bodyTime))
	defer func() { _ = c.rc.SetReadDeadline(time.Time{}) }()
	if c.r.ContentLength > limit {
		c.drain()
		return nil, release, tooLarge(limit)
	}
	size := limit
	if c.r.ContentLength >= 0 {
		size = c.r.ContentLength
	}
	if !c.memory.Take(int(size)) {
		return nil, release, fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again").WithRetry(time.Second)
	}
	release = func() { c.memory.Give(int(size)) }
	body, err = io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		c.drain()
		err = tooLarge(limit)
	case err != nil:
		err = malformed("the end of the body did not come")
	}
	if err != nil {
		release()
		return nil, func() {}, err
	}
	return body, release, nil
}

// drain reads what a client sends of a body that is refused, so that it comes to read why. One that asked first is told at once.
func (c *call) drain() {
	if c.r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, c.r.Body, maxDrain) // the refusal stands whatever comes
	}
}

// maxDrain bounds that; who sends more finds the connection closed.
const maxDrain = 64 << 20

func tooLarge(limit int64) error {
	return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "the body has more than the %d bytes that this route takes", limit)
}

// typed refuses a body of another type.
func (c *call) typed(media string) error {
	all := c.r.Header["Content-Type"]
	if len(all) == 1 {
		if t, _, err := mime.ParseMediaType(all[0]); err == nil && t == media {
			return nil
		}
	}
	return fault.New(fault.InvalidArgument, fault.ReasonMediaType, "send the body with `Content-Type: "+media+"`, once")
}

// object reads the body as a JSON object.
func (c *call) object(to int64) (*object, func(), error) {
	body, release, err := c.read(to, mediaJSON)
	if err != nil {
		return nil, release, err
	}
	o, err := parseObject(body)
	return o, release, err
}

// none refuses a body but for an empty object.
func (c *call) none() error {
	body, release, err := c.read(1<<10, "")
	defer release()
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	o, err := parseObject(body)
	if err != nil {
		return err
	}
	return o.err()
}

// check adds to what is wrong with a body what the contract's own rules say of the request that was made of it, under the names that
// its fields have here.
func (c *call) check(o *object, m proto.Message, names names) error {
	broken, err := c.Violations(m)
	if err != nil {
		return err
	}
	for path, what := range broken {
		if name := names.of(path); o.bad[name] == "" {
			o.bad[name] = what
		}
	}
	return o.err()
}
