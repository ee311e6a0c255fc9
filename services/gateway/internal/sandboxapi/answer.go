package sandboxapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

const (
	mediaJSON  = edge.MediaJSON
	mediaBytes = "application/octet-stream"
	mediaText  = "text/plain; charset=utf-8"
	mediaSSE   = "text/event-stream; charset=utf-8"
)

// maxBody is the most bytes of a JSON body: 512 KiB of stdin in which JSON escapes every byte, and the rest.
const maxBody = 4 << 20

// answer writes a JSON document.
func (c *call) answer(status int, v any) error { return c.JSON(status, v) }

// problem is the body of a failed call: message is all that the published clients read.
type problem struct {
	Message string             `json:"message"`
	Error   fault.ProblemError `json:"error"`
}

// fail answers an error.
func (c *call) fail(err error) {
	c.Refuse(c.ctx, c.r, err, "Bearer", func(p fault.Problem) any { return problem{Message: sentence(p.Error), Error: p.Error} })
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

func invalid(bad map[string]string) error { return edge.Invalid(bad) }

func field(name, what string) error { return invalid(map[string]string{name: what}) }

func malformed(what string) error { return edge.Malformed("the body cannot be read: " + what) }

// object reads a JSON body into v. Fields that v has not are left out, as the published API does: its clients send more from version to
// version. An empty body leaves v as it is.
func (c *call) object(v any) error {
	body, release, err := edge.Body{Most: maxBody, Time: c.opt.BodyTime, Memory: c.memory}.Read(c.w, c.r)
	defer release()
	switch {
	case err != nil:
		return err
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
