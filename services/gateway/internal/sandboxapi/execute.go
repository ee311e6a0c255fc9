package sandboxapi

import (
	"encoding/base64"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
)

// maxArgument is the most bytes of code that go as an argument; more goes in as standard input, which is not recorded either.
const maxArgument = 64 << 10

// execution is the body of an execute, and of a stream that is posted.
type execution struct {
	Sandbox  string `json:"sandbox"`
	Language string `json:"language"`
	Code     string `json:"code"`
	// Timeout in seconds; 0 is the server's default.
	Timeout float64 `json:"timeout"`
	// Beyond the published API: text for standard input, or base64; variables; where it runs.
	Stdin       string            `json:"stdin"`
	StdinBase64 string            `json:"stdin_base64"`
	Env         map[string]string `json:"env"`
	Cwd         string            `json:"cwd"`
	// Detach leaves it to itself once its worker has it; KeepStdin leaves its standard input open.
	Detach    bool `json:"detach"`
	KeepStdin bool `json:"keep_stdin"`
}

// languages are how code is run: as an argument, and from standard input where it is too long for one.
var languages = map[string]struct{ argument, input []string }{
	"bash":   {[]string{"bash", "-c"}, []string{"bash", "-s"}},
	"python": {[]string{"python3", "-c"}, []string{"python3", "-"}},
	"node":   {[]string{"node", "-e"}, []string{"node", "-"}},
}

// order is the command that a body asks for.
func (c *call) order(b execution) (*computev1.ExecCommandRequest, error) {
	bad := map[string]string{}
	how, ok := languages[strings.ToLower(orElse(b.Language, "bash"))]
	if !ok {
		bad["language"] = "must be bash, python or node"
	}
	if b.Code == "" {
		bad["code"] = "must not be empty"
	}
	name := orElse(c.r.URL.Query().Get("sandbox"), b.Sandbox)
	if name == "" {
		bad["sandbox"] = "must be the name of a sandbox"
	}
	stdin := []byte(b.Stdin)
	if b.StdinBase64 != "" {
		var err error
		if stdin, err = base64.StdEncoding.DecodeString(b.StdinBase64); err != nil {
			bad["stdin_base64"] = "must be base64"
		}
	}
	if len(b.Code) > maxArgument && (len(stdin) > 0 || b.KeepStdin) {
		bad["code"] = "must be at most 64 KiB where there is standard input too; put it into a file"
	}
	if math.IsNaN(b.Timeout) || b.Timeout < 0 || b.Timeout > math.MaxInt32 {
		bad["timeout"] = "must be a number of seconds"
	}
	if err := invalid(bad); err != nil {
		return nil, err
	}
	id, err := c.find(name)
	if err != nil {
		return nil, err
	}
	req := &computev1.ExecCommandRequest{
		SandboxId: id, Command: how.argument[0], Args: append(how.argument[1:len(how.argument):len(how.argument)], b.Code), Stdin: stdin, Env: b.Env, WorkingDir: b.Cwd,
		Detach: b.Detach, KeepStdin: b.KeepStdin,
	}
	if len(b.Code) > maxArgument {
		req.Args, req.Stdin = how.input[1:], []byte(b.Code)
	}
	if b.Timeout > 0 {
		req.Timeout = durationpb.New(time.Duration(b.Timeout * float64(time.Second)))
	}
	broken, err := c.Violations(req)
	if err != nil {
		return nil, err
	}
	return req, invalid(broken)
}

// result is the answer to an execute.
type result struct {
	// Output is stdout and stderr in the order in which they came.
	Output    string `json:"output"`
	ExitCode  int32  `json:"exit_code"`
	Truncated bool   `json:"truncated"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	// The same byte for byte, where the text above could not hold it.
	StdoutBase64 string    `json:"stdout_base64,omitempty"`
	StderrBase64 string    `json:"stderr_base64,omitempty"`
	StartedAt    time.Time `json:"started_at"`
	EndedAt      time.Time `json:"ended_at"`
	ExecutionID  string    `json:"execution_id"`
	// Reason is how it ended: exited, signaled, timed_out, …; Message is for people.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// execute runs code to its end. A command that fails is no failed call; an end that cannot be known is one, never an exit code.
func (c *call) execute() error {
	var b execution
	if err := c.object(&b); err != nil {
		return err
	}
	if b.KeepStdin && !b.Detach {
		return field("keep_stdin", "needs detach: nobody could write to it")
	}
	req, err := c.order(b)
	if err != nil {
		return err
	}
	if b.Detach {
		return c.detach(req)
	}
	g := c.gather(true)
	defer g.Release()
	x, err := c.ran(req, g)
	if err != nil {
		return err
	}
	out := result{
		Output: text(g.Both), ExitCode: x.Completed.GetExitCode(), Stdout: text(g.Stdout), Stderr: text(g.Stderr),
		StdoutBase64: exact(g.Stdout), StderrBase64: exact(g.Stderr), Truncated: g.Truncated(x),
		StartedAt: x.StartedAt, EndedAt: x.EndedAt, ExecutionID: x.ID, Reason: x.Completed.GetReason(), Message: x.Completed.GetMessage(),
	}
	return c.answer(http.StatusOK, out)
}

// ran runs a command, gives its output to w and returns what is recorded of it: an end that was observed, or an error.
func (c *call) ran(req *computev1.ExecCommandRequest, w watcher) (sandbox.Exec, error) {
	_, err := c.use.Exec(c.ctx, c.p, c.r.Header.Get(headerKey), req, w)
	if err != nil {
		return sandbox.Exec{}, rename(err)
	}
	x, err := c.use.Receipt(c.ctx, c.p, req.GetSandboxId(), w.exec())
	if err != nil {
		return x, err
	}
	return x, outcome(x)
}

// outcome is nil for an end that was observed.
func outcome(x sandbox.Exec) error {
	if x.State == sandbox.ExecCompleted {
		return nil
	}
	return fault.Newf(fault.Lost, fault.ReasonExecLost, "what became of the command is not known (%s); it may have run, so do not simply repeat it; its receipt is %s",
		orElse(x.Lost.GetMessage(), orElse(x.Lost.GetReason(), "it did not end")), x.ID)
}

// watcher follows a command and knows its id.
type watcher interface {
	Named(id string) error
	Output(i output.Item) error
	exec() string
}

// gathered is the output of an exec that is told in one answer.
type gathered struct {
	*call
	*edge.Gathered
	id string
}

func (c *call) gather(together bool) *gathered {
	return &gathered{call: c, Gathered: edge.NewGathered(c.memory, together)}
}

func (g *gathered) exec() string { return g.id }

func (g *gathered) Named(id string) error {
	g.id = id
	g.w.Header().Set(headerExecution, id)
	return nil
}

func (g *gathered) Output(i output.Item) error {
	g.Add(i.Chunk)
	return nil
}

// text is output as JSON holds it: what is no UTF-8 becomes U+FFFD, only here at the very end.
func text(data []byte) string { return strings.ToValidUTF8(string(data), "\uFFFD") }

// exact is output that text cannot hold, in base64; empty for what it can.
func exact(data []byte) string {
	if utf8.Valid(data) {
		return ""
	}
	return base64.StdEncoding.EncodeToString(data)
}

// streamed is the body or query of a stream.
func (c *call) streamed() (execution, error) {
	var b execution
	if c.r.Method == http.MethodPost {
		if err := c.object(&b); err != nil {
			return b, err
		}
	}
	query := c.r.URL.Query()
	b.Language, b.Code = orElse(query.Get("language"), b.Language), orElse(query.Get("code"), b.Code)
	if t := query.Get("timeout"); t != "" {
		seconds, err := strconv.ParseFloat(t, 64)
		if err != nil {
			return b, field("timeout", "must be a number of seconds")
		}
		b.Timeout = seconds
	}
	return b, nil
}

// stream runs code and sends its output as server-sent events stdout and stderr, then exit, or error where no end was observed.
func (c *call) stream() error {
	how, err := c.framing()
	if err != nil {
		return err
	}
	b, err := c.streamed()
	if err != nil {
		return err
	}
	if b.Detach {
		return field("detach", "is for execute; a stream is followed")
	}
	req, err := c.order(b)
	if err != nil {
		return err
	}
	w := &events{call: c, frame: newFramer(how)}
	x, err := c.ran(req, w)
	return w.finish(x, err)
}
