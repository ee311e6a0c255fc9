package usecase

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// ListFilter narrows a list.
type ListFilter struct {
	Tenant, Session string
	Statuses        []computev1.SandboxStatus
	Cursor          string
	// Limit is 1 to 200.
	Limit int
	// Keep narrows it further; nil keeps all.
	Keep func(*commandsv1.SandboxView) bool
}

// List gives one page of the tenant's sandboxes, newest first, and the cursor of the next page. It reads the view, which is a
// moment behind the log.
func (u *UseCases) List(ctx context.Context, p principal.Principal, f ListFilter) (page []*commandsv1.SandboxView, next string, err error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return nil, "", err
	}
	tenant := f.Tenant
	if !p.Development() || tenant != "" {
		if tenant, err = p.Owner(tenant); err != nil {
			return nil, "", err
		}
	}
	behind, err := parseCursor(f.Cursor)
	if err != nil {
		return nil, "", err
	}
	all, err := u.views(ctx, tenant, func(v *commandsv1.SandboxView) bool {
		return (f.Session == "" || v.GetRequested().GetSessionId() == f.Session) &&
			(len(f.Statuses) == 0 || slices.Contains(f.Statuses, sandbox.Status(v.GetState()))) &&
			(f.Cursor == "" || position(v).compare(behind) > 0) && (f.Keep == nil || f.Keep(v))
	})
	if err != nil {
		return nil, "", err
	}
	slices.SortFunc(all, func(a, b *commandsv1.SandboxView) int { return position(a).compare(position(b)) })
	if len(all) <= f.Limit {
		return all, "", nil
	}
	return all[:f.Limit], position(all[f.Limit-1]).cursor(), nil
}

// place orders a list: newest first, ids where two are equally new.
type place struct {
	nanos int64
	id    string
}

func position(v *commandsv1.SandboxView) place {
	return place{nanos: v.GetCreatedAt().AsTime().UnixNano(), id: v.GetSandboxId()}
}

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(b.nanos, a.nanos), cmp.Compare(a.id, b.id))
}

func (a place) cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", a.nanos, a.id))
}

func parseCursor(s string) (p place, err error) {
	if s == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		_, err = fmt.Sscanf(string(raw), "%d %s", &p.nanos, &p.id)
	}
	if err != nil || !ids.Valid(p.id) || p.cursor() != s {
		return p, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
			WithFields(map[string]string{"page.cursor": "is not a cursor that a list gave"})
	}
	return p, nil
}

// views reads every view of the tenant (of all tenants where it is empty) that keep takes. It costs one pass over the tenant's
// views, about 0.5 KB each.
func (u *UseCases) views(ctx context.Context, tenant string, keep func(*commandsv1.SandboxView) bool) ([]*commandsv1.SandboxView, error) {
	var all []*commandsv1.SandboxView
	err := directget.Each(ctx, u.js, subject.BucketStream(topology.BucketSandbox), subject.BucketKeys(topology.BucketSandbox, tenant), 1,
		func(m directget.Message) error {
			v := &commandsv1.SandboxView{}
			if len(m.Data) > 0 && proto.Unmarshal(m.Data, v) == nil && keep(v) {
				all = append(all, v)
			}
			return nil
		})
	if err != nil {
		return nil, unreachable(err)
	}
	return all, nil
}
