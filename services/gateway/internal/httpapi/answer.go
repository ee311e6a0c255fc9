package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
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
		h.Set("WWW-Authenticate", c.Door.Schemes())
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest:
		h.Set("Connection", "close") // what else comes on it is not known to be a request
	}
	_ = c.answer(status, problem) // a problem always encodes
}

// read gives the body, at most the route's bytes, and what to call once it is not needed any more. It counts in the memory of all
// requests.
func (c *call) read(limit int64, media string) (body []byte, release func(), err error) {
	release = func() {}
	if err := c.plain(); err != nil {
		return nil, release, err
	}
	if media != "" {
		if err := c.typed(media); err != nil {
			return nil, release, err
		}
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(c.opt.BodyTime))
	if c.r.ContentLength > limit {
		c.drain()
		return nil, release, tooLarge(limit)
	}
	body, held, err := c.gather(limit)
	if err != nil {
		c.memory.Give(held)
		// The deadline stays: the server reads on behind the answer, and would wait for a sender who has stopped.
		return nil, release, err
	}
	_ = c.rc.SetReadDeadline(time.Time{})
	return body, func() { c.memory.Give(held) }, nil
}

// firstPart is what is set aside for a body before any of it is there, in bytes.
const firstPart = 4 << 10

// gather reads the body. Memory is taken as it comes in, not as it is announced: who stops half way holds little. held has to be given back.
func (c *call) gather(limit int64) (body []byte, held int, err error) {
	r := http.MaxBytesReader(c.w, c.r.Body, limit)
	most := int(limit) + 1
	if n := c.r.ContentLength; n >= 0 {
		most = int(n) + 1 // one more, in which the end shows
	}
	for {
		if len(body) == cap(body) {
			more := min(max(firstPart, cap(body)), most-cap(body))
			if more <= 0 {
				more = firstPart
			}
			if !c.memory.Take(more) {
				return nil, held, fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again").WithRetry(time.Second)
			}
			held += more
			grown := make([]byte, len(body), len(body)+more)
			copy(grown, body)
			body = grown
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var over *http.MaxBytesError
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return body, held, nil
		case errors.As(err, &over):
			c.drain()
			return nil, held, tooLarge(limit)
		default:
			return nil, held, malformed("the end of the body did not come")
		}
	}
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

// plain refuses a body that is packed: nothing here unpacks it, and a file would be written as it came.
func (c *call) plain() error {
	for _, coding := range c.r.Header["Content-Encoding"] {
		if !strings.EqualFold(coding, "identity") {
			return fault.New(fault.InvalidArgument, fault.ReasonMediaType, "send the body as it is, without a `Content-Encoding`")
		}
	}
	return nil
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
