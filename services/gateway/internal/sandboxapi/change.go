package sandboxapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// maxChange is the most bytes of a change: 32 labels of 63 and 128 characters, in which JSON escapes every byte, and the rest.
const maxChange = 64 << 10

// change gives a sandbox more time, from now on, other labels and another egress, and answers the record. What the body does not name, or has null
// for, stays as it is. All is checked before anything is done. A body that is repeated asks for the time once more.
func (c *call) change() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	fields, err := c.fields(maxChange)
	if err != nil {
		return err
	}
	wanted, err := c.wanted(fields)
	if err != nil {
		return err
	}
	s, err := c.use.Change(c.ctx, c.p, id, wanted)
	if err != nil {
		return rename(err)
	}
	out, err := c.seenNow(s)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, out)
}

// changeable are the fields of a change.
var changeable = []string{"ttl_seconds", "labels", "egress"}

// wanted reads a change.
func (c *call) wanted(fields map[string]json.RawMessage) (usecase.Changes, error) {
	var out usecase.Changes
	bad := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(changeable, name) {
			bad[name] = "cannot be changed; there is: " + strings.Join(changeable, ", ")
		}
	}
	if v, given := fields["ttl_seconds"]; given {
		seconds, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil || seconds < 1 || seconds > math.MaxInt32 {
			bad["ttl_seconds"] = "must be a number of seconds over 0: how long it is to live from now on, at least"
		}
		out.More = time.Duration(seconds) * time.Second
	}
	if v, given := fields["egress"]; given {
		out.Egress = wantedEgress(v, bad)
	}
	if v, given := fields["labels"]; given {
		all := map[string]*string{}
		if json.Unmarshal(v, &all) != nil {
			bad["labels"] = "must be an object of strings"
		}
		out.Labels = map[string]string{}
		for name, value := range all {
			if value == nil {
				bad[fmt.Sprintf("labels[%q]", name)] = "must be a string; leave out what is not to be there"
				continue
			}
			out.Labels[name] = *value
		}
		broken, err := c.Violations(&computev1.CreateSandboxRequest{Labels: out.Labels})
		if err != nil {
			return out, err
		}
		for path, what := range broken {
			if strings.HasPrefix(path, "labels") {
				bad[path] = what
			}
		}
	}
	return out, invalid(bad)
}

// fields are those of a JSON body of most bytes, without those that are null. An empty body has none.
func (c *call) fields(most int64) (map[string]json.RawMessage, error) {
	body, release, err := edge.Body{Most: most, Time: c.opt.BodyTime, Memory: c.memory}.Read(c.w, c.r)
	defer release()
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return nil, err
	}
	fields := map[string]json.RawMessage{}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&fields); err != nil || fields == nil {
		return nil, malformed("it is no JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed("there is something behind its object")
	}
	for name, value := range fields {
		if string(value) == "null" {
			delete(fields, name)
		}
	}
	return fields, nil
}
