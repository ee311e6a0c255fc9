package httpapi

import (
	"bytes"
	"mime"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

const (
	mediaJSON  = edge.MediaJSON
	mediaBytes = "application/octet-stream"
	mediaSSE   = "text/event-stream"
)

// answer writes a JSON document.
func (c *call) answer(status int, v any) error { return c.JSON(status, v) }

// fail answers an error.
func (c *call) fail(err error) {
	c.Refuse(c.ctx, c.r, err, c.Door.Schemes(), func(p fault.Problem) any { return p })
}

// read gives the body, at most the route's bytes, and what to call once it is not needed any more.
func (c *call) read(most int64, media string) (body []byte, release func(), err error) {
	if err := c.plain(); err != nil {
		return nil, func() {}, err
	}
	if media != "" {
		if err := c.typed(media); err != nil {
			return nil, func() {}, err
		}
	}
	return edge.Body{Most: most, Time: c.opt.BodyTime, Memory: c.memory}.Read(c.w, c.r)
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
