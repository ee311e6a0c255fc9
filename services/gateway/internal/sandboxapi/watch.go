package sandboxapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// What a toolbox knows of watchers (toolbox/watch, which this module does not build): the program that it has itself, its argument, and its
// exit code where the sandbox has as many as it may.
const (
	watchProgram   = "sandtrail-watch"
	watchRecursive = "recursive"
	watchersOver   = 4
)

const (
	// watchBytes is about how much of a watcher's output one call reads.
	watchBytes = 128 << 10
	// watchStep is the most that is said to have been read at once: what a standard input takes.
	watchStep = 64 << 10
	// mostWatchWait is the longest that a call waits for an event.
	mostWatchWait = 50 * time.Second
)

// errWatching ends the following of a watcher that is left to itself.
var errWatching = errors.New("it watches")

// beginning follows a watcher until it watches.
type beginning struct {
	id    string
	wrong []byte
}

func (s *beginning) Named(id string) error {
	s.id = id
	return nil
}

func (s *beginning) Output(i output.Item) error {
	switch {
	case i.Chunk == nil:
	case i.Chunk.Stream == transcript.Stdout:
		return errWatching
	case len(s.wrong) < maxWords:
		s.wrong = append(s.wrong, i.Chunk.Data...)
	}
	return nil
}

// watch begins to watch a directory: by a command in the sandbox, whose id is the watcher's.
func (c *call) watch() error {
	var b struct {
		Path      string `json:"path"`
		Recursive bool   `json:"recursive"`
	}
	if err := c.object(&b); err != nil {
		return err
	}
	if b.Path == "" || len(b.Path) > maxPath || strings.IndexByte(b.Path, 0) >= 0 {
		return field("path", "must be a path of 1 to 4,096 bytes without a zero byte")
	}
	p, err := c.place()
	if err != nil {
		return err
	}
	req := &computev1.ExecCommandRequest{
		SandboxId: p.id, Command: watchProgram, WorkingDir: p.abs(b.Path), Timeout: durationpb.New(c.use.LongestExec()), Detach: true, KeepStdin: true,
		StopAtOutputLimit: true,
	}
	if b.Recursive {
		req.Args = []string{watchRecursive}
	}
	broken, err := c.Violations(req)
	if err != nil {
		return err
	}
	if err := invalid(broken); err != nil {
		return err
	}
	w := &beginning{}
	_, err = c.use.Exec(c.ctx, c.p, c.r.Header.Get(headerKey), req, w)
	switch {
	case errors.Is(err, errWatching):
		c.w.Header().Set(headerExecution, w.id)
		return c.answer(http.StatusOK, map[string]any{"watcher_id": w.id, "path": p.abs(b.Path), "recursive": b.Recursive})
	case err != nil:
		return err
	}
	x, err := c.use.Receipt(c.ctx, c.p, p.id, w.id)
	if err == nil {
		err = outcome(x)
	}
	if err != nil {
		return err
	}
	return unwatched(x, w.wrong)
}

// unwatched is why a watcher ended before it watched.
func unwatched(x sandbox.Exec, said []byte) error {
	code, message := x.Completed.GetExitCode(), x.Completed.GetMessage()
	switch {
	case x.Completed.GetReason() == sandbox.ReasonStartFailed && code == 127:
		return fault.New(fault.FailedPrecondition, fault.ReasonNotImplemented, "the sandbox was made by a version that watches no directories; make it anew")
	case x.Completed.GetReason() == sandbox.ReasonStartFailed && strings.Contains(message, "does not exist"):
		return fault.New(fault.NotFound, fault.ReasonPathNotFound, "no directory is at the path")
	case code == watchersOver:
		return fault.Newf(fault.ResourceExhausted, fault.ReasonTooManyExecs, "%.200s; remove one", text(bytes.TrimSpace(said)))
	case len(said) > 0:
		return failed(code, said)
	}
	return failed(code, []byte(message))
}

// watcherOf is the exec of a watcher of the sandbox that the path names.
func (c *call) watcherOf(id string) (box string, x sandbox.Exec, err error) {
	if box, err = c.box(); err != nil {
		return "", x, err
	}
	if !ids.Valid(id) {
		return "", x, field("id", "must be the id of a watcher")
	}
	x, err = c.use.Receipt(c.ctx, c.p, box, id)
	if fault.Is(err, fault.ReasonExecNotFound) || err == nil && x.Spec.GetCommand() != watchProgram {
		err = fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no watcher %s", id)
	}
	return box, x, err
}

// change is one event of a watcher.
type change struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// kinds are the types of changes that are told. What else a watcher's output has is between it and this API.
var kinds = []string{"create", "write", "remove", "rename", "chmod", "overflow"}

// watched tells what has changed: behind a place that the call names, or behind what was told last.
func (c *call) watched() error {
	query, bad := c.r.URL.Query(), map[string]string{}
	from, err := strconv.ParseUint(orElse(query.Get("after"), "0"), 10, 63)
	if err != nil {
		bad["after"] = "must be what an answer had as next"
	}
	wait, err := strconv.ParseUint(orElse(query.Get("wait"), "0"), 10, 16)
	if err != nil {
		bad["wait"] = "must be a number of seconds"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	box, x, err := c.watcherOf(orElse(query.Get("id"), query.Get("watcher_id")))
	if err != nil {
		return err
	}
	told, live := uint64(0), !x.Over()
	if live {
		told, err = c.use.Stdin(c.ctx, c.p, box, x.ID, 0, nil, false)
		if live = fault.CodeOf(err) != fault.FailedPrecondition; err != nil && live {
			return err
		}
	}
	if !query.Has("after") {
		if !live {
			return ended(x)
		}
		from = told
	}
	changes, l, err := c.changes(x, from)
	if err == nil && len(changes) == 0 && wait > 0 && live {
		c.await(x, l.Last, min(time.Duration(wait)*time.Second, mostWatchWait)) //nolint:gosec // 16 bits
		changes, l, err = c.changes(x, l.Next)
	}
	switch {
	case err != nil:
		return err
	case live:
		c.acknowledge(box, x.ID, told, min(l.Next, l.End)) // a caller may name a place that there is not yet
	case len(changes) == 0 && !l.More:
		return ended(x)
	}
	return c.answer(http.StatusOK, map[string]any{"events": changes, "next": l.Next, "more": l.More})
}

func ended(x sandbox.Exec) error {
	return fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "the watcher %s has ended (%s); make another one", x.ID,
		orElse(x.Completed.GetReason(), "lost"))
}

// changes reads events from a place on.
func (c *call) changes(x sandbox.Exec, from uint64) ([]change, usecase.Lines, error) {
	l, err := c.use.Lines(c.ctx, c.p, x, from, watchBytes)
	if err != nil {
		return nil, l, err
	}
	all := []change{}
	if l.Missing {
		all = append(all, change{Name: ".", Type: "overflow"})
	}
	for line := range bytes.Lines(l.Data) {
		var one change
		if json.Unmarshal(line, &one) == nil && slices.Contains(kinds, one.Type) {
			all = append(all, one)
		}
	}
	return all, l, nil
}

// next ends a wait at the first output.
type next struct{}

func (next) Named(string) error { return nil }

func (next) Output(i output.Item) error {
	if i.Chunk != nil {
		return errWatching
	}
	return nil
}

// await waits for output behind a chunk, or for the end.
func (c *call) await(x sandbox.Exec, after uint64, most time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, most)
	defer cancel()
	_, _ = c.use.Attach(ctx, c.p, x.Sandbox, x.ID, after, next{}) // what there is then is read in any case
}

// acknowledge tells a watcher how far somebody has read. Where that fails a later call tells the same events again.
func (c *call) acknowledge(box, id string, from, to uint64) {
	for from < to {
		taken, err := c.use.Stdin(c.ctx, c.p, box, id, from, make([]byte, min(to-from, watchStep)), false)
		if err != nil || taken <= from {
			c.Log.DebugContext(c.ctx, "a watcher was not told what was read", "exec", id, "error", err)
			return
		}
		from = taken
	}
}

// unwatch ends a watcher. One that has ended is left as it is.
func (c *call) unwatch() error {
	var b struct {
		ID      string `json:"id"`
		Watcher string `json:"watcher_id"`
	}
	if err := c.object(&b); err != nil {
		return err
	}
	query := c.r.URL.Query()
	box, x, err := c.watcherOf(orElse(b.ID, orElse(b.Watcher, orElse(query.Get("id"), query.Get("watcher_id")))))
	if err != nil {
		return err
	}
	if !x.Over() {
		if err := c.use.Cancel(c.ctx, c.p, "", box, x.ID); err != nil {
			return err
		}
	}
	return c.answer(http.StatusOK, map[string]any{"success": true, "watcher_id": x.ID})
}
