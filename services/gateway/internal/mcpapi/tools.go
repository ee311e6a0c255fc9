// Package mcpapi offers sandboxes to agents as tools of the Model Context Protocol. It is a client of compute.v1.ComputeService like any
// other, with the caller's own credential, and decides nothing about who may do what.
package mcpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/metadata"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxCalls of tools run at once, each of which holds up to 1 MiB; one more is refused as unavailable.
	maxCalls = 256
	// patience is how long a call that may be repeated is, while the server says that it is unavailable.
	patience = 5 * time.Second
)

// Runner runs a command under an idempotency key and follows it to its end. accepted is called once with the exec's id when it is recorded,
// each for everything that comes; an error of theirs ends the following and is returned as it is.
type Runner func(
	ctx context.Context, req *computev1.ExecCommandRequest, key string, accepted func(id string) error, each func(*computev1.ExecEvent) error,
) (*computev1.ExecCompleted, error)

// Options of the tools.
type Options struct {
	// API is what they call.
	API computev1.ComputeServiceClient
	// Run runs commands; nil follows one stream of API, which is enough within one process.
	Run Runner
	// Image of a sandbox whose caller names none; Tenant that it is made for where no credential says so.
	Image, Tenant string
	// Version of the program.
	Version string
	Log     *slog.Logger
	// Registry of metrics; nil: there are none.
	Registry prometheus.Registerer
	// Refused is told of a call of a tool that failed here and not in API, with its correlation id and when it began; nil: nobody is.
	Refused func(ctx context.Context, tool, correlation string, began time.Time, err error)
}

// Tools are the tools of one server, for any number of sessions.
type Tools struct {
	opt    Options
	server *mcp.Server
	// bound has the tools of one sandbox, which boxOf names.
	bound *mcp.Server
	// slots bounds the calls at work.
	slots chan struct{}
	// base ends every call, but not what it has begun.
	base  context.Context //nolint:containedctx // calls come from the SDK, whose contexts do not end with this program
	calls *prometheus.CounterVec
}

const instructions = `Sandboxes run code in isolation. create_sandbox first, then run_command or run_python in it; its files are in /workspace and stay until
stop_sandbox. A command that failed is an answer with an exit code, not an error. Long output comes as its beginning and its end:
get_execution reads what lies between. What an error says about retrying holds: with the same idempotency_key nothing happens twice.`

const boundInstructions = `These tools are about one sandbox, which runs code in isolation. Its files are in /workspace and stay as long as it does. A command that
failed is an answer with an exit code, not an error. Long output comes as its beginning and its end: get_execution reads what lies between.
What an error says about retrying holds: with the same idempotency_key nothing happens twice.`

// boxKey is that of the sandbox that a session is about.
type boxKey struct{}

// boxOf is the sandbox that a call is about by the endpoint that it came to; empty: by its arguments.
func boxOf(ctx context.Context) string {
	box, _ := ctx.Value(boxKey{}).(string)
	return box
}

// of gives the server of a sandbox's tools; that of all tools for none.
func (t *Tools) of(box string) *mcp.Server {
	if box == "" {
		return t.server
	}
	return t.bound
}

func server(version, says string) *mcp.Server {
	return mcp.NewServer(&mcp.Implementation{Name: "sandtrail", Title: "Sandtrail", Version: cmp.Or(version, "dev")}, &mcp.ServerOptions{
		Instructions: says, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
}

// New makes the tools. ctx ends every call under way. It fails where metrics of the same names are registered already.
func New(ctx context.Context, o Options) (*Tools, error) {
	t := &Tools{opt: o, base: ctx, slots: make(chan struct{}, maxCalls)}
	if t.opt.Run == nil {
		t.opt.Run = t.once
	}
	t.server, t.bound = server(o.Version, instructions), server(o.Version, boundInstructions)
	t.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_mcp_calls_total", Help: "Calls of tools, by tool and outcome: ok, or the reason of the error.",
	}, []string{"tool", "outcome"})
	if o.Registry != nil {
		if err := o.Registry.Register(t.calls); err != nil {
			return nil, err
		}
	}
	for _, register := range []func(*Tools) error{sandboxTools, execTools, fileTools} {
		if err := register(t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Serve talks to one client over a pair of streams until it closes them or ctx ends.
func (t *Tools) Serve(ctx context.Context, transport mcp.Transport) error {
	return t.server.Run(ctx, transport)
}

// call is one call of a tool under way.
type call struct {
	*Tools
	// ctx has what the API has to know of the caller.
	ctx context.Context //nolint:containedctx // it is the call's
	req *mcp.CallToolRequest
	// correlation finds the call in the logs.
	correlation string
}

// names are those of arguments by the path of the field that they become.
type names map[string]string

// of renames a path, also of an element or entry.
func (n names) of(path string) string {
	for field, arg := range n {
		if rest, ok := strings.CutPrefix(path, field); ok && (rest == "" || rest[0] == '[') {
			if strings.HasPrefix(rest, `["`) {
				return arg + rest // an entry of a map; the number of an argument says nothing to who gave one line
			}
			return arg
		}
	}
	return path
}

// argBox is the argument that names a sandbox.
const argBox = "sandbox_id"

// add registers a tool. The schemas are those of In and Out, with the bounds that its arguments have everywhere. One that does something in a
// sandbox is a tool of a bound server too, without the argument that names it; its life is not what such a tool decides about.
func add[In, Out any](t *Tools, tool *mcp.Tool, renamed names, do func(*call, In) (Out, error)) error {
	t.calls.WithLabelValues(tool.Name, "ok") // there from the start, so that its first call is a change
	in, err := jsonschema.For[In](nil)
	if err != nil {
		return err
	}
	if err := register(t, t.server, *tool, in, renamed, do); err != nil {
		return err
	}
	if _, ok := in.Properties[argBox]; !ok || tool.Name == toolStop {
		return nil
	}
	if in, err = jsonschema.For[In](nil); err != nil {
		return err
	}
	names := func(name string) bool { return name == argBox }
	delete(in.Properties, argBox)
	in.Required, in.PropertyOrder = slices.DeleteFunc(in.Required, names), slices.DeleteFunc(in.PropertyOrder, names)
	return register(t, t.bound, *tool, in, renamed, do)
}

func register[In, Out any](t *Tools, to *mcp.Server, tool mcp.Tool, in *jsonschema.Schema, renamed names, do func(*call, In) (Out, error)) error {
	out, err := jsonschema.For[Out](nil)
	if err != nil {
		return err
	}
	for name, property := range in.Properties {
		if bound := bounds[name]; bound != nil {
			bound(property)
		}
	}
	resolved, err := in.Resolve(nil)
	if err != nil {
		return fmt.Errorf("schema of %s: %w", tool.Name, err)
	}
	tool.InputSchema, tool.OutputSchema = in, out
	to.AddTool(&tool, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		began := time.Now()
		c, end, err := t.begin(ctx, req)
		defer end()
		var v Out
		if err == nil {
			v, err = guarded(c, resolved, do)
		}
		outcome := "ok"
		if err != nil {
			outcome = string(fault.FromStatus(err).Reason)
		}
		t.calls.WithLabelValues(tool.Name, outcome).Inc()
		if ours := (*fault.Error)(nil); errors.As(err, &ours) && t.opt.Refused != nil {
			t.opt.Refused(ctx, tool.Name, c.correlation, began, err)
		}
		if err != nil {
			return c.failed(err, renamed), nil
		}
		text, err := json.Marshal(v)
		if err != nil {
			return c.failed(err, renamed), nil
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: json.RawMessage(text)}, nil
	})
	return nil
}

// guarded reads the arguments and does the work. A panic is a fault of ours, and no end of the program: nobody else is there to catch it.
func guarded[In, Out any](c *call, schema *jsonschema.Resolved, do func(*call, In) (Out, error)) (out Out, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.opt.Log.ErrorContext(c.ctx, "a tool panicked", "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()), "correlation_id", c.correlation)
			err = fault.New(fault.Internal, fault.ReasonInternal, "something went wrong on our side; the correlation id leads to it")
		}
	}()
	args := c.req.Params.Arguments
	if len(args) == 0 || string(args) == "null" { // clients send that where a tool needs none
		args = json.RawMessage("{}")
	}
	var plain any
	var in In
	if err := json.Unmarshal(args, &plain); err != nil {
		return out, invalid("the arguments are not JSON")
	}
	if err := schema.Validate(plain); err != nil {
		return out, invalid("the arguments are not those of the tool's schema: " + err.Error())
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return out, invalid("the arguments cannot be read")
	}
	if box := boxOf(c.ctx); box != "" {
		named, err := json.Marshal(map[string]string{argBox: box})
		if err == nil {
			err = json.Unmarshal(named, &in)
		}
		if err != nil {
			return out, fault.From(err)
		}
	}
	return do(c, in)
}

func invalid(message string) *fault.Error {
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, message)
}

// begin gives a call the caller's credential and a place; call end when it is over.
func (t *Tools) begin(ctx context.Context, req *mcp.CallToolRequest) (c *call, end func(), err error) {
	c = &call{Tools: t, req: req, correlation: ids.New()}
	pairs := []string{"x-correlation-id", c.correlation}
	if req.Extra != nil {
		for _, name := range []string{"Authorization", "Traceparent"} {
			if v := req.Extra.Header.Get(name); v != "" {
				pairs = append(pairs, strings.ToLower(name), v)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, pairs...))
	stops := []func() bool{context.AfterFunc(t.base, func() { cancel(errStopping) })}
	s, _ := ctx.Value(sessionKey{}).(*session)
	if s != nil {
		stops = append(stops, context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) }))
	}
	c.ctx = ctx
	places := []chan struct{}{t.slots}
	if s != nil {
		places = append(places, s.slots)
	}
	var taken []chan struct{}
	for _, p := range places {
		select {
		case p <- struct{}{}:
			taken = append(taken, p)
		default:
			err = fault.New(fault.Unavailable, fault.ReasonConflict, "too many calls of tools at once; try again").WithRetry(time.Second)
		}
	}
	return c, func() {
		for _, p := range taken {
			<-p
		}
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}, err
}

// failed is an error as a tool gives it: the same problem that the HTTP API answers, for the agent to read.
func (c *call) failed(err error, renamed names) *mcp.CallToolResult {
	_, problem := fault.HTTP(fault.FromStatus(err), c.correlation)
	for i, f := range problem.Error.Fields {
		problem.Error.Fields[i].Field = renamed.of(f.Field)
	}
	text, err := json.Marshal(problem)
	if err != nil {
		text = []byte(`{"error":{"code":"internal"}}`)
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}}
}

// keyed is the context of a call that does something: under the caller's idempotency key, or one of its own, so that it may be repeated.
func (c *call) keyed(key string) context.Context {
	return withKey(c.ctx, cmp.Or(key, ids.New()))
}

func withKey(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
}

// try makes a call that may be repeated, and repeats it while the server is away, for patience at most.
func try[Req, Res any](ctx context.Context, method func(context.Context, Req) (Res, error), req Req) (Res, error) {
	for end := time.Now().Add(patience); ; {
		res, err := method(ctx, req)
		f := fault.FromStatus(err)
		if f == nil || f.Code != fault.Unavailable {
			return res, err
		}
		wait := max(f.RetryAfter, 200*time.Millisecond)
		if time.Now().Add(wait).After(end) || pause.For(ctx, wait) != nil {
			return res, err
		}
	}
}
