package mcpapi

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

type createIn struct {
	Image          string            `json:"image,omitempty" jsonschema:"container image to run; the deployment has a default with Python"`
	CPUs           float64           `json:"cpus,omitempty" jsonschema:"CPUs, also parts of one"`
	Memory         string            `json:"memory,omitempty" jsonschema:"memory as a Kubernetes quantity such as 512Mi or 2Gi"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty" jsonschema:"the sandbox's whole life, its start included; then it ends by itself"`
	IdleSeconds    int64             `json:"idle_timeout_seconds,omitempty" jsonschema:"end it once nothing was done with it for so long, or up to half of that or a 500th of its age longer; a command that runs is use"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"environment of everything that runs in it; values are never logged"`
	IdempotencyKey string            `json:"idempotency_key,omitempty" jsonschema:"the same key with the same arguments gives the same sandbox for 24 hours"`
}

type createOut struct {
	SandboxID string    `json:"sandbox_id" jsonschema:"what the other tools are given"`
	Status    string    `json:"status" jsonschema:"creating: calls on it wait until it runs"`
	CreatedAt time.Time `json:"created_at"`
}

type stopIn struct {
	SandboxID string `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
}

type stopOut struct {
	SandboxID string `json:"sandbox_id"`
	Status    string `json:"status" jsonschema:"terminated, or terminating: its end is decided and goes on"`
}

const toolStop = "stop_sandbox"

func sandboxTools(t *Tools) error {
	err := add(t, &mcp.Tool{
		Name: "create_sandbox", Annotations: changes("Create a sandbox", false, false),
		Description: "Create an isolated sandbox with a workspace of its own. It starts in the background; the first call on it waits for that. " +
			"Stop it when you are done.",
	}, names{
		"limits.cpu_millis": "cpus", "limits.memory_bytes": "memory", "limits.max_runtime": "timeout_seconds",
		"limits.idle_timeout": "idle_timeout_seconds", "env_vars": "env",
		"idempotency-key": "idempotency_key",
	}, (*call).create)
	if err != nil {
		return err
	}
	return add(t, &mcp.Tool{
		Name: toolStop, Annotations: changes("Stop a sandbox", true, true),
		Description: "End a sandbox and everything that runs in it. Its files are gone with it. May be repeated.",
	}, nil, (*call).stop)
}

func (c *call) create(in createIn) (createOut, error) {
	req := &computev1.CreateSandboxRequest{
		TenantId: c.opt.Tenant, Image: cmp.Or(in.Image, c.opt.Image), EnvVars: in.Env,
		Limits: &computev1.ResourceLimits{CpuMillis: uint32(math.Ceil(in.CPUs * 1000))}, //nolint:gosec // the schema bounds it
	}
	if in.Memory != "" {
		n, err := usecase.ParseQuantity(in.Memory)
		if err != nil {
			return createOut{}, invalid("the arguments are not valid").WithFields(map[string]string{"memory": err.Error()})
		}
		req.Limits.MemoryBytes = n
	}
	if in.TimeoutSeconds > 0 {
		req.Limits.MaxRuntime = durationpb.New(time.Duration(in.TimeoutSeconds) * time.Second)
	}
	if in.IdleSeconds > 0 {
		req.Limits.IdleTimeout = durationpb.New(time.Duration(in.IdleSeconds) * time.Second)
	}
	res, err := try(c.keyed(in.IdempotencyKey), unary(c.opt.API.CreateSandbox), req)
	if err != nil {
		return createOut{}, err
	}
	return createOut{SandboxID: res.GetSandboxId(), Status: "creating", CreatedAt: res.GetCreatedAt().AsTime()}, nil
}

// stopWait is how long a stop waits for the end that is decided: shorter than the minute that clients wait for a tool.
const stopWait = 30 * time.Second

func (c *call) stop(in stopIn) (stopOut, error) {
	ctx, cancel := context.WithTimeout(c.ctx, stopWait)
	defer cancel()
	_, err := try(ctx, unary(c.opt.API.DestroySandbox), &computev1.DestroySandboxRequest{SandboxId: in.SandboxID})
	switch f := fault.FromStatus(err); {
	case err == nil:
		return stopOut{in.SandboxID, "terminated"}, nil
	case f.Code == fault.DeadlineExceeded && c.ctx.Err() == nil:
		return stopOut{in.SandboxID, "terminating"}, nil
	default:
		return stopOut{}, err
	}
}

// unary is a method of a client without options.
func unary[Req, Res any](method func(context.Context, Req, ...grpc.CallOption) (Res, error)) func(context.Context, Req) (Res, error) {
	return func(ctx context.Context, req Req) (Res, error) { return method(ctx, req) }
}
