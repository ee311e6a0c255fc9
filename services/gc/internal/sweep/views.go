package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Views finds the views of sandboxes that have been over for at least keep: destroyed, and their workspace removed. Unless dry it
// takes them out of the bucket, which would be full one day. The log has everything still: only the list of sandboxes goes without
// them, and a rebuild brings them back until the next pass. It reads every view, about 0.5 KB each.
func (s *Sweeper) Views(ctx context.Context, keep time.Duration, dry bool) ([]Finding, error) {
	name := subject.BucketStream(topology.BucketSandbox)
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open the bucket of sandboxes: %w", err)
	}
	now := s.now()
	var found []Finding
	var errs []error
	err = directget.Each(ctx, s.js, name, subject.BucketKeys(topology.BucketSandbox, ""), 1, func(m directget.Message) error {
		v := &commandsv1.SandboxView{}
		if len(found) >= MaxFindings || len(m.Data) == 0 || proto.Unmarshal(m.Data, v) != nil || !past(v, now.Add(-keep)) {
			return nil
		}
		over, err := s.over(ctx, v)
		if err == nil && over {
			found = append(found, Finding{
				Kind: KindView, ID: v.GetSandboxId(), Tenant: v.GetTenantId(), Action: ActionForget,
				Reason: "its workspace was removed at " + stamp(v.GetWorkspaceDeletedAt().AsTime()),
			})
			if !dry {
				// Only as it was read: one that is written meanwhile stays.
				err = stream.Purge(ctx, jetstream.WithPurgeSubject(m.Subject), jetstream.WithPurgeSequence(m.Seq+1))
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("view of sandbox %s: %w", v.GetSandboxId(), err))
		}
		return ctx.Err()
	})
	return found, errors.Join(append(errs, err)...)
}

func past(v *commandsv1.SandboxView, before time.Time) bool {
	gone := v.GetWorkspaceDeletedAt()
	return v.GetState() == sandbox.Destroyed && gone != nil && !gone.AsTime().After(before)
}

// over asks the log whether a view is right about its sandbox's end.
func (s *Sweeper) over(ctx context.Context, v *commandsv1.SandboxView) (bool, error) {
	h, err := s.events.Load(ctx, subject.Sandbox(v.GetTenantId(), v.GetSandboxId()))
	if err != nil {
		return false, err
	}
	sb, err := sandbox.Fold(h)
	if err != nil || sb.State != sandbox.Destroyed {
		return false, err
	}
	disks, err := s.events.Load(ctx, subject.Workspace(v.GetTenantId(), v.GetSandboxId()))
	if err != nil {
		return false, err
	}
	disk, err := sandbox.FoldWorkspace(disks)
	return err == nil && disk.State == sandbox.Deleted, err
}
