package usecase

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Life is a sandbox with what only its whole history tells.
type Life struct {
	sandbox.Sandbox
	// Start is how its first start went; nil before it was ready.
	Start *Start
	// Reclaimed is when nothing was left of it, its workspace included; zero until then.
	Reclaimed time.Time
}

// Start is the course of a start.
type Start struct {
	Warm bool
	// Phases follow each other and add up to the time from accepted to ready.
	Phases []Phase
}

// Phase is a part of a start.
type Phase struct {
	Name string
	Took time.Duration
}

// Life returns a sandbox as the log has it now.
func (u *UseCases) Life(ctx context.Context, p principal.Principal, id string) (Life, error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return Life{}, err
	}
	agg, err := u.aggregate(ctx, p, id)
	if err != nil {
		return Life{}, err
	}
	h, err := u.history(ctx, agg)
	if err != nil {
		return Life{}, err
	}
	if len(h.Events) == 0 {
		return Life{}, notFound(id)
	}
	s, err := sandbox.Show(h)
	if err != nil {
		return Life{}, err
	}
	l := Life{Sandbox: s, Start: start(s.CreatedAt, h.Events)}
	if s.State == sandbox.Destroyed {
		l.Reclaimed, err = u.reclaimed(ctx, agg)
	}
	return l, err
}

// start finds the first start that came to its end.
func start(accepted time.Time, events []envelope.Recorded) *Start {
	begun := accepted
	for _, e := range events {
		switch b := e.Body.(type) {
		case *eventsv1.SandboxStarting:
			begun = e.Time
		case *eventsv1.SandboxReady:
			s := &Start{Warm: b.GetWarm()}
			var image, made time.Duration
			for _, p := range b.GetPhases() {
				took := time.Duration(min(p.GetDurationUs(), uint64(time.Hour/time.Microsecond))) * time.Microsecond //nolint:gosec // bounded
				if p.GetName() == "image" {
					image += took
				} else {
					made += took
				}
			}
			whole := max(e.Time.Sub(begun), 0)
			image = min(image, whole)
			made = min(made, whole-image)
			s.Phases = []Phase{
				{"accepted", 0}, {"scheduled", max(begun.Sub(accepted), 0)}, {"image", image}, {"sandbox", made}, {"ready", whole - image - made},
			}
			return s
		}
	}
	return nil
}

// reclaimed is when the workspace of a sandbox that was destroyed was observed gone.
func (u *UseCases) reclaimed(ctx context.Context, agg subject.Aggregate) (time.Time, error) {
	h, err := u.history(ctx, subject.Workspace(agg.Tenant, agg.ID))
	if err != nil {
		return time.Time{}, err
	}
	for _, e := range h.Events {
		if _, gone := e.Body.(*eventsv1.WorkspaceDeleted); gone {
			return e.Time, nil
		}
	}
	return time.Time{}, nil
}
