package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// AuditProve is `sandtrail audit prove`.
type AuditProve struct {
	AuditLog
	Trusted
	Sequence uint64 `arg:"" help:"Stream sequence of the event, as sandtrail events prints it."`
	Export   string `type:"path" placeholder:"DIR" help:"Read an export instead of the log on the server."`
	To       string `type:"path" placeholder:"FILE" help:"Write the proof to a new file instead of stdout."`
}

// Run makes the proof, which is JSON whatever --output says.
func (a *AuditProve) Run(e *Env) error {
	keys, err := a.keys()
	if err != nil {
		return err
	}
	ctx, done := a.local(e)
	open := audit.FromExport(a.Export, nil)
	if a.Export == "" {
		var log audit.Log
		done()
		if ctx, log, done, err = a.open(e); err != nil {
			return err
		}
		open = log.Open
	}
	defer done()
	p, err := audit.Prove(ctx, open, a.Sequence, keys)
	if err != nil {
		return ended(ctx, err)
	}
	b, err := p.Encode()
	if err != nil {
		return err
	}
	if a.To == "" {
		_, err = e.Stdout.Write(b)
		return err
	}
	f, err := os.OpenFile(a.To, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usagef("--to: %w", err)
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// Help is printed below the flags.
func (a *AuditProve) Help() string {
	return "The proof holds the event itself: who asked for what. Hand it to whom that concerns."
}

// AuditCheckProof is `sandtrail audit check-proof`.
type AuditCheckProof struct {
	AuditOutput
	Trusted
	File string `arg:"" type:"path" help:"The proof; - is stdin."`
}

// Run checks a proof, and ends with ExitTampered where it does not hold.
func (a *AuditCheckProof) Run(e *Env) error {
	keys, err := a.keys()
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return usagef("--key: a proof is worth as much as the key that it is checked with")
	}
	b, err := readFile(e, a.File, audit.MaxProof)
	if err != nil {
		return err
	}
	p, err := audit.DecodeProof(b)
	if err != nil {
		return tampered(err)
	}
	got, err := p.Check(keys)
	if err != nil {
		return tampered(err)
	}
	ev := &computev1.WatchEventsResponse{Type: got.Event.Type, Body: got.Event.Body}
	body := render.EventBody(ev)
	if a.Output == "json" {
		text := json.RawMessage("null")
		if body != nil {
			if text, err = protojson.Marshal(body); err != nil {
				return err
			}
		}
		return render.Value(e.Stdout, struct {
			OK         bool              `json:"ok"`
			Event      audit.ProvenEvent `json:"event"`
			Decoded    json.RawMessage   `json:"decoded_body"`
			Checkpoint checkpointJSON    `json:"checkpoint"`
		}{true, got.Event, text, checkpointOf(got.Checkpoint)})
	}
	c := got.Checkpoint
	return render.Fields(e.Stdout, []render.Field{
		{Name: "Result", Value: "proved"},
		{Name: "Event", Value: fmt.Sprintf("%d on %s", got.Event.Sequence, got.Event.Subject)},
		{Name: "Type", Value: render.EventType(ev)},
		{Name: "Time", Value: clock(got.Event.At())},
		{Name: "Actor", Value: got.Event.Actor},
		{Name: "Correlation", Value: got.Event.Correlation},
		{Name: "Says", Value: render.Happened(body)},
		{Name: "Log", Value: c.LogID},
		{Name: "Signed", Value: fmt.Sprintf("%s by key %s, over %d events", render.Time(timestamppb.New(c.Time)), c.Key, c.Size)},
	})
}

// tamperedError ends the program with ExitTampered.
type tamperedError struct{ error }

func (e tamperedError) Unwrap() error { return e.error }

func tampered(err error) error { return tamperedError{err} }

func noCheckpoint() error {
	return fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "nothing of the log is signed yet: the service that signs it has no key, or does not run")
}
