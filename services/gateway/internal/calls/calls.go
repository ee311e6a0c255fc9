// Package calls records what callers ask for: who, by which key, what, about what, and how it ended. Records stand in a stream of their own;
// they are written behind the answer, and what is too much is counted instead of told one by one.
package calls

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Outcomes of calls.
const (
	OK      = "ok"
	Refused = "refused"
	Failed  = "failed"
)

// call is what is known of a call beside its context.
type call struct {
	api, action string
	// ended: it has its record.
	ended atomic.Bool

	mu                    sync.Mutex
	tenant, sandbox, exec string
}

type key struct{}

func begin(ctx context.Context, api, name string) context.Context {
	c := &call{}
	c.api, c.action = actionOf(api, name)
	return context.WithValue(ctx, key{}, c)
}

// About says that a call is about a sandbox or an exec, whether or not it is there. What is no id is not kept.
func About(ctx context.Context, agg subject.Aggregate) {
	c, ok := ctx.Value(key{}).(*call)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tenant = agg.Tenant
	if ids.Valid(agg.Sandbox) {
		c.sandbox = agg.Sandbox
	}
	if agg.Kind == subject.KindExec && ids.Valid(agg.ID) {
		c.exec = agg.ID
	}
}

// record is what is kept of the call c of ctx, which has ended with err.
func record(ctx context.Context, c *call, began, ended time.Time, err error) *eventsv1.CallEnded {
	r := &eventsv1.CallEnded{
		Api: c.api, Action: c.action, Outcome: OK, CorrelationId: telemetry.Correlation(ctx), BeganAt: timestamppb.New(began.UTC()),
		DurationUs: uint64(max(0, ended.Sub(began).Microseconds())), Count: 1, TenantId: subject.NoTenant, //nolint:gosec // not negative
	}
	c.mu.Lock()
	r.SandboxId, r.ExecId = c.sandbox, c.exec
	if c.tenant != "" {
		r.TenantId = c.tenant
	}
	c.mu.Unlock()
	if p, perr := principal.From(ctx); perr == nil {
		r.Actor = p.Actor
		if id, ok := strings.CutPrefix(p.Actor, "key:"); ok {
			r.KeyId = id
		}
		if p.Tenant != "" {
			r.TenantId = p.Tenant
		}
	}
	if err != nil {
		detail, _ := fault.Detail(err)
		r.Code, r.Reason = detail.GetCode(), detail.GetReason()
		r.Outcome = outcomeOf(fault.Code(r.GetCode()))
	}
	return r
}

func outcomeOf(c fault.Code) string {
	switch c {
	case fault.Unavailable, fault.Internal, fault.DeadlineExceeded, fault.Cancelled, fault.Lost:
		return Failed
	default:
		return Refused
	}
}

// APIs.
const (
	GRPC  = "grpc"
	HTTP  = "http"
	Named = "named"
	MCP   = "mcp"
)

// actions are those of routes and tools whose use case gRPC has a name for.
var actions = map[string]map[string]string{
	HTTP: {
		"create": "CreateSandbox", "status": "DescribeSandbox", "status_alias": "DescribeSandbox", "execute": "ExecCommand",
		"execution": "GetExec", "execution_by_key": "GetExec", "output": "AttachExec", "events": "AttachExec", "stdin": "WriteStdin",
		"cancel": "CancelExec", "stop": "DestroySandbox", "stop_alias": "DestroySandbox", "extend": "ExtendSandbox",
		"list": "ListSandboxes", "list_slash": "ListSandboxes", "list_alias": "ListSandboxes", "read_file": "ReadFile",
		"write_file": "WriteFile", "write_files": "WriteFile", "list_files": "ListFiles", "quota": "GetQuota", "none": "NoRoute",
	},
	Named: {
		"create": "CreateSandbox", "create_on": "CreateSandbox", "list": "ListSandboxes", "list_slash": "ListSandboxes", "get": "DescribeSandbox",
		"delete": "DestroySandbox", "stop": "StopSandbox", "start": "StartSandbox", "execute": "ExecCommand", "stream": "ExecCommand", "stream_post": "ExecCommand", "files": "ListFiles",
		"download": "ReadFile", "upload": "WriteFile", "bulk_upload": "WriteFile", "none": "NoRoute",
	},
}

// actionOf names an API and an action: the method that does the same in gRPC, and otherwise what the API calls it, in the same spelling.
func actionOf(api, name string) (string, string) {
	if name == "mcp" || name == "mcp_slash" {
		return MCP, "Message"
	}
	if action, ok := actions[api][name]; ok {
		return api, action
	}
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return api, b.String()
}
