package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Past are the flags that say when.
type Past struct {
	At string `placeholder:"SEQ|TIME|AGE" help:"As it was behind this sequence of the log, at this time (2026-11-30T10:00:00Z) or so long ago (90m). Default: the last."`
}

// point is a place in the log: a sequence, or a time. The zero point is its end.
type point struct {
	seq  uint64
	time time.Time
}

func (p *Past) moment() (point, error) {
	if p.At == "" {
		return point{}, nil
	}
	if seq, err := strconv.ParseUint(p.At, 10, 64); err == nil {
		return point{seq: seq}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, p.At); err == nil {
			return point{time: t}, nil
		}
	}
	if age, err := time.ParseDuration(p.At); err == nil && age >= 0 {
		return point{time: time.Now().Add(-age)}, nil
	}
	return point{}, usagef("--at: %q is no sequence, no time such as 2026-11-30T10:00:00Z, and no age such as 90m", p.At)
}

func (m point) end() bool { return m == point{} }

// covers reports whether an event had happened. Clocks of services differ a little: the first event of a later time ends what had.
func (m point) covers(e envelope.Recorded) bool {
	switch {
	case m.seq > 0:
		return e.Seq <= m.seq
	case !m.time.IsZero():
		return !e.Time.After(m.time)
	}
	return true
}

// history is an aggregate's events up to a moment and up to now.
type history struct {
	at        point
	over      bool
	then, now eventlog.History
}

func (h *history) add(agg subject.Aggregate, e envelope.Recorded) {
	h.then.Aggregate, h.now.Aggregate = agg, agg
	h.now.Events = append(h.now.Events, e)
	if h.over = h.over || !h.at.covers(e); !h.over {
		h.then.Events = append(h.then.Events, e)
	}
}

// picture is a state to show: as one JSON object, and as fields for people.
type picture struct {
	doc    json.RawMessage
	fields []render.Field
}

// show shows the state at the moment and, where that is not now, what has changed since.
func (h *history) show(e *Env, asJSON bool, see func(eventlog.History) (picture, error)) error {
	then, err := see(h.then)
	if err != nil {
		return err
	}
	if h.at.end() {
		return then.show(e, asJSON)
	}
	now, err := see(h.now)
	if err != nil {
		// What was then is known all the same.
		report(e.Stderr, aboutError{"what has changed since", err}, asJSON)
		return then.show(e, asJSON)
	}
	return compare(e, asJSON, then, now, len(h.now.Events)-len(h.then.Events))
}

func (p picture) show(e *Env, asJSON bool) error {
	if asJSON {
		return render.Value(e.Stdout, p.doc)
	}
	return render.Fields(e.Stdout, p.fields)
}

// change is a field whose value is not what it was; null where it was, or is, not there.
type change struct {
	Field string          `json:"field"`
	Then  json.RawMessage `json:"then"`
	Now   json.RawMessage `json:"now"`
}

// compare shows a state and what has changed since, over so many events.
func compare(e *Env, asJSON bool, then, now picture, events int) error {
	changes, err := changed(then.doc, now.doc)
	if err != nil {
		return err
	}
	if asJSON {
		var doc map[string]any
		if err := json.Unmarshal(then.doc, &doc); err != nil {
			return err
		}
		doc["changed_since"], doc["events_since"] = changes, events
		return render.Value(e.Stdout, doc)
	}
	if err := render.Fields(e.Stdout, then.fields); err != nil {
		return err
	}
	fmt.Fprintln(e.Stdout)
	if len(changes) == 0 {
		_, err := fmt.Fprintln(e.Stdout, "Nothing has changed since.")
		return err
	}
	t := render.Table{Header: []string{"CHANGED SINCE", "THEN", "NOW"}}
	for _, c := range changes {
		t.Rows = append(t.Rows, []string{c.Field, plain(c.Then), plain(c.Now)})
	}
	return t.Write(e.Stdout)
}

// changed compares two JSON objects, by the paths of their values. Lists are values.
func changed(then, now json.RawMessage) ([]change, error) {
	was, is := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := flatten("", then, was); err != nil {
		return nil, err
	}
	if err := flatten("", now, is); err != nil {
		return nil, err
	}
	all := []change{}
	for _, path := range slices.Sorted(maps.Keys(merged(was, is))) {
		if string(was[path]) != string(is[path]) {
			all = append(all, change{path, was[path], is[path]})
		}
	}
	return all, nil
}

func merged(a, b map[string]json.RawMessage) map[string]json.RawMessage {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func flatten(path string, doc json.RawMessage, to map[string]json.RawMessage) error {
	if len(doc) == 0 || doc[0] != '{' {
		if string(doc) != "null" {
			to[path] = doc
		}
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(doc, &object); err != nil {
		return err
	}
	for k, v := range object {
		below := k
		if path != "" {
			below = path + "." + k
		}
		if err := flatten(below, v, to); err != nil {
			return err
		}
	}
	return nil
}

// plain is a JSON value as people read it.
func plain(v json.RawMessage) string {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}
