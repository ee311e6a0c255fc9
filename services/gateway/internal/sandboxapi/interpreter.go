package sandboxapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/gateway/internal/interpreter"
)

const (
	// cellTime is how long a cell may run unless its request says otherwise, cellMost the most that it may ask for, in seconds.
	cellTime, cellMost = 300, 3600
)

// cell is the body of an execute of the interpreter.
type cell struct {
	Code      string `json:"code"`
	ContextID string `json:"context_id"`
	Language  string `json:"language"`
	// Timeout in seconds; 0 is cellTime.
	Timeout float64 `json:"timeout"`
}

// said is the answer to a cell. A cell that fails is no failed call.
type said struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Text is the repr of the last expression, null where it is None or there is none.
	Text    *string              `json:"text"`
	Error   *interpreter.Error   `json:"error"`
	Results []interpreter.Result `json:"results"`
	// Images are the data of the results that are image/png or image/jpeg, base64.
	Images    []json.RawMessage `json:"images"`
	Truncated bool              `json:"truncated"`
	TimedOut  bool              `json:"timed_out"`
	// Restarted: the variables are gone.
	Restarted bool   `json:"restarted"`
	ContextID string `json:"context_id"`
}

// runCell runs code in a context to its end.
func (c *call) runCell() error {
	var b cell
	if err := c.object(&b); err != nil {
		return err
	}
	bad := map[string]string{}
	switch {
	case b.Code == "":
		bad["code"] = "must not be empty"
	case len(b.Code) > interpreter.CodeMost:
		bad["code"] = "must be at most 1 MiB; put it into a file and import it"
	}
	pythonOnly(bad, b.Language)
	if math.IsNaN(b.Timeout) || b.Timeout < 0 || b.Timeout > cellMost {
		bad["timeout"] = fmt.Sprintf("must be a number of seconds up to %d", cellMost)
	}
	if err := invalid(bad); err != nil {
		return err
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	var x sandbox.Exec
	if b.ContextID == "" {
		x, err = c.defaultContext(box)
	} else {
		x, err = c.contextOf(box, b.ContextID)
	}
	if err != nil {
		return err
	}
	r := interpreter.Request{Do: interpreter.Run, Code: b.Code, Timeout: b.Timeout}
	if r.Timeout == 0 {
		r.Timeout = cellTime
	}
	a, release, err := c.ask(c.ctx, x, r)
	if err != nil {
		return err
	}
	defer release()
	out := said{
		Stdout: a.Stdout, Stderr: a.Stderr, Text: a.Text, Error: a.Error, Results: a.Results, Images: []json.RawMessage{}, Truncated: a.Truncated,
		TimedOut: a.TimedOut, Restarted: a.Restarted, ContextID: x.ID,
	}
	for _, r := range a.Results {
		if r.Type == "image/png" || r.Type == "image/jpeg" {
			out.Images = append(out.Images, r.Data)
		}
	}
	if out.Results == nil {
		out.Results = []interpreter.Result{}
	}
	c.w.Header().Set(headerExecution, x.ID)
	return c.answer(http.StatusOK, out)
}

func pythonOnly(bad map[string]string, language string) {
	if l := strings.ToLower(language); l != "" && l != "python" && l != "python3" {
		bad["language"] = "must be python"
	}
}

// contextRecord is what is told of a context.
type contextRecord struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	// Cwd is empty for the sandbox's own.
	Cwd string `json:"cwd"`
	// State is RUNNING or ENDED.
	State     string    `json:"state"`
	Default   bool      `json:"default"`
	CreatedAt time.Time `json:"created_at"`
	// Python is its version, where the answer comes from the context.
	Python string `json:"python,omitempty"`
}

func recordOf(x sandbox.Exec) contextRecord {
	r := contextRecord{ID: x.ID, Language: "python", Cwd: x.Spec.GetWorkingDir(), State: "RUNNING", CreatedAt: x.StartedAt}
	if x.Over() {
		r.State = "ENDED"
	}
	maker, _ := interpreter.Maker(x)
	r.Default = maker == defaultMaker
	return r
}

const defaultMaker = "default"

// createContext makes a context and answers once it takes cells. With an idempotency key a repeat finds the one that was made.
func (c *call) createContext() error {
	var b struct {
		Language string `json:"language"`
		Cwd      string `json:"cwd"`
	}
	if err := c.object(&b); err != nil {
		return err
	}
	bad := map[string]string{}
	pythonOnly(bad, b.Language)
	if err := invalid(bad); err != nil {
		return err
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	maker := ids.New()
	if key := c.r.Header.Get(headerKey); key != "" {
		maker = ids.Derive("context maker", c.p.Actor, key)
	}
	x, err := c.newContext(box, maker, b.Cwd)
	if err != nil {
		return err
	}
	return c.greeted(http.StatusCreated, x, interpreter.Hello)
}

// newContext starts a context in a place that is free.
func (c *call) newContext(box, maker, cwd string) (sandbox.Exec, error) {
	for place := 1; place < contextsMost; place++ {
		for {
			x, turn, err := c.at(box, place)
			if err != nil {
				return sandbox.Exec{}, err
			}
			if x != nil && !x.Over() {
				if is, _ := interpreter.Maker(*x); is == maker {
					return *x, nil
				}
				break
			}
			made, err := c.begin(box, contextID(box, place, turn+1), maker, cwd)
			if err != nil {
				return sandbox.Exec{}, err
			}
			if is, _ := interpreter.Maker(made); is == maker {
				return made, nil
			}
			// Somebody else was faster: they have the place, or had it.
		}
	}
	return sandbox.Exec{}, fault.Newf(fault.ResourceExhausted, fault.ReasonTooManyExecs, "%d contexts run in the sandbox; end one first", contextsMost-1)
}

// greeted asks a context something that it answers at once, and answers its record.
func (c *call) greeted(status int, x sandbox.Exec, do string) error {
	ctx, cancel := context.WithTimeout(c.ctx, helloTime)
	defer cancel()
	a, release, err := c.ask(ctx, x, interpreter.Request{Do: do})
	if err != nil {
		return err
	}
	release()
	r := recordOf(x)
	r.Python = a.Python
	return c.answer(status, r)
}

// contexts lists those that run, the default one first, then the oldest.
func (c *call) contexts() error {
	box, err := c.box()
	if err != nil {
		return err
	}
	if _, err := c.use.Located(c.ctx, c.p, box); err != nil {
		return err
	}
	all := []contextRecord{}
	for place := range contextsMost {
		x, _, err := c.at(box, place)
		if err != nil {
			return err
		}
		if x != nil && !x.Over() {
			all = append(all, recordOf(*x))
		}
	}
	slices.SortStableFunc(all, func(a, b contextRecord) int {
		switch {
		case a.Default:
			return -1
		case b.Default:
			return 1
		}
		return a.CreatedAt.Compare(b.CreatedAt)
	})
	return c.answer(http.StatusOK, map[string]any{"contexts": all})
}

// pathContext is the context that the path names.
func (c *call) pathContext() (sandbox.Exec, error) {
	box, err := c.box()
	if err != nil {
		return sandbox.Exec{}, err
	}
	return c.contextOf(box, c.r.PathValue("id"))
}

// restartContext gives a context new variables, also while a cell runs: that one fails.
func (c *call) restartContext() error {
	x, err := c.pathContext()
	if err != nil {
		return err
	}
	return c.greeted(http.StatusOK, x, interpreter.Restart)
}

// removeContext ends a context. One that has ended is answered alike.
func (c *call) removeContext() error {
	x, err := c.pathContext()
	if err != nil {
		return err
	}
	if !x.Over() {
		if err := c.use.Cancel(c.ctx, c.p, "", x.Sandbox, x.ID); err != nil {
			return err
		}
		if x, err = c.ended(x); err != nil {
			return err
		}
	}
	return c.answer(http.StatusOK, recordOf(x))
}
