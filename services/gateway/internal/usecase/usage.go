package usecase

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// usageWait bounds a query of usage rows.
const usageWait = 30 * time.Second

// Usage gives one page of the tenant's usage rows, newest first.
func (u *UseCases) Usage(ctx context.Context, p principal.Principal, q *commandsv1.UsageQuery) (*commandsv1.UsageReply, error) {
	if err := p.Need(scopes.Inspect); err != nil {
		return nil, err
	}
	if !p.Development() || q.GetTenantId() != "" {
		tenant, err := p.Owner(q.GetTenantId())
		if err != nil {
			return nil, err
		}
		q.TenantId = tenant
	}
	data, err := proto.Marshal(q)
	if err != nil {
		return nil, fault.From(err)
	}
	ctx, cancel := context.WithTimeout(ctx, usageWait)
	defer cancel()
	answer, err := u.nc.RequestWithContext(ctx, subject.Usage(), data)
	if err != nil {
		return nil, fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the usage service does not answer; try again").
			WithRetry(5 * time.Second).Because(err)
	}
	reply := &commandsv1.UsageReply{}
	if err := proto.Unmarshal(answer.Data, reply); err != nil {
		return nil, fault.From(err)
	}
	if reply.GetError() != nil {
		return nil, ofPage(fault.FromDetail(reply.GetError()))
	}
	return reply, nil
}

// ofPage gives what is said about a query's cursor and limit the names that they have in the caller's request.
func ofPage(e *fault.Error) *fault.Error {
	for _, name := range []string{"cursor", "limit"} {
		if what, ok := e.Fields[name]; ok {
			delete(e.Fields, name)
			e.Fields["page."+name] = what
		}
	}
	return e
}
