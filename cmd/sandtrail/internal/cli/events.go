package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Events is `sandtrail events`.
type Events struct {
	Server
	Sandbox string   `placeholder:"ID" help:"Only those of one sandbox and its execs."`
	After   uint64   `placeholder:"SEQ" help:"Only those behind this sequence."`
	Follow  bool     `short:"f" help:"Go on with what happens."`
	Type    []string `placeholder:"TYPE" help:"Only these types, e.g. SandboxReady."`
}

// Help is printed below the flags.
func (v *Events) Help() string {
	return "With --output json each event is a line, its body an object. Go on from where you stopped with --after SEQUENCE."
}

// Run shows events.
func (v *Events) Run(e *Env) error {
	wanted, err := eventTypes(v.Type)
	if err != nil {
		return err
	}
	req := &computev1.WatchEventsRequest{TenantId: v.Tenant, AfterSequence: v.After, NoFollow: !v.Follow}
	if v.Sandbox != "" {
		if req.SandboxId, err = sandboxID(v.Sandbox); err != nil {
			return err
		}
	}
	ctx, api, done, err := v.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	return api.Watch(ctx, req, func(ev *computev1.WatchEventsResponse) error {
		if len(wanted) > 0 && !slices.Contains(wanted, strings.ToLower(render.EventType(ev))) {
			return nil
		}
		if v.json() {
			return eventLine(e, ev)
		}
		_, err := fmt.Fprintln(e.Stdout, render.Event(ev))
		return err
	})
}

// eventTypes are the wanted types in lower case. One that does not exist is a mistake: it would show nothing for ever.
func eventTypes(given []string) ([]string, error) {
	var known, wanted []string
	messages := eventsv1.File_events_v1_events_proto.Messages()
	for i := range messages.Len() {
		known = append(known, strings.ToLower(string(messages.Get(i).Name())))
	}
	for _, t := range given {
		t = strings.ToLower(t)
		if !slices.Contains(known, t) {
			return nil, usagef("--type: there is no event %q", t)
		}
		wanted = append(wanted, t)
	}
	return wanted, nil
}

// eventLine writes the answer's fields with the event's body as an object instead of bytes and text.
func eventLine(e *Env, ev *computev1.WatchEventsResponse) error {
	body := json.RawMessage(ev.GetBodyJson())
	m := proto.CloneOf(ev)
	m.Body, m.BodyJson = nil, ""
	data, err := render.Proto(m)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	delete(fields, "body_json")
	delete(fields, "heartbeat")
	fields["body"] = json.RawMessage("null")
	if json.Valid(body) {
		fields["body"] = body
	}
	line, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	_, err = e.Stdout.Write(append(line, '\n'))
	return err
}
