package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxStdin is what a command may be given.
	maxStdin = 512 << 10
	// cancelWait bounds the call that asks for a command's end.
	cancelWait = 30 * time.Second
)

// Exec is `sandtrail exec`.
type Exec struct {
	Server
	Env            []string      `short:"e" sep:"none" placeholder:"K=V" help:"Environment variable; K alone takes its value from here, which keeps it out of process lists."`
	Workdir        string        `short:"w" placeholder:"PATH" help:"Where it runs. Default: the workspace."`
	Timeout        time.Duration `placeholder:"DURATION" help:"How long the command may run. Default: the server's."`
	Stdin          bool          `short:"i" help:"Give it what comes in on stdin, at most 512 KiB."`
	OutputLimit    string        `placeholder:"SIZE" help:"Record so many bytes of each output stream and the last MiB, e.g. 64Mi. Default: the server's."`
	StopAtLimit    bool          `help:"End the command when its output passes the limit."`
	Detach         bool          `short:"d" help:"Print the exec's id once it is accepted and leave it running."`
	IdempotencyKey string        `placeholder:"KEY" help:"The same key with the same command gives the same exec for 24 hours. Default: a random one."`
	Sandbox        string        `arg:"" help:"The sandbox's id."`
	Command        []string      `arg:"" passthrough:"partial" help:"The command and its arguments, behind --."`
}

// Help is printed below the flags.
func (x *Exec) Help() string {
	return "The command's stdout and stderr come out as they are, and its exit code is this program's. With --output json each event " +
		"of the exec is a line, data in base64. A broken connection is taken up again behind the last byte; the command is never run twice. " +
		"Ctrl-C ends the command and waits for its end; a second one leaves at once.\n\n" + exitHelp
}

var errDetached = errors.New("detached")

// Run runs a command.
func (x *Exec) Run(e *Env) error {
	req, err := x.request(e.Stdin)
	if err != nil {
		return err
	}
	api, err := x.dial()
	if err != nil {
		return err
	}
	defer api.Close() // nothing is left to be lost
	out := newOutput(e, x.json())
	accepted := make(chan string, 1)
	ctx, stop := x.interrupts(e, api, accepted)
	defer stop()
	end, err := api.Exec(ctx, req, idempotencyKey(x.IdempotencyKey), client.Follower{
		Accepted: func(id string) error {
			accepted <- id
			if x.Detach {
				return errDetached
			}
			return nil
		},
		Event: out.event,
	})
	if errors.Is(err, errDetached) {
		return x.detached(e, <-accepted)
	}
	if err != nil {
		return err
	}
	out.check(end)
	if !x.json() && (end.GetMessage() != "" || end.GetCancelled()) {
		e.warn("%s", render.Clean(ending(end)))
	}
	if !x.json() {
		for _, text := range render.LimitsMet(end.GetLimits(), end.GetMessage()) {
			e.warn("%s", render.Clean(text))
		}
	}
	return code(end)
}

func (x *Exec) detached(e *Env, id string) error {
	if x.json() {
		return render.Value(e.Stdout, map[string]string{"exec_id": id, "sandbox_id": x.Sandbox})
	}
	_, err := fmt.Fprintln(e.Stdout, id)
	return err
}

// code is the command's exit code as this program's.
func code(end *computev1.ExecCompleted) error {
	if end.GetExitCode() == 0 {
		return nil
	}
	return exitError(end.GetExitCode())
}

func ending(end *computev1.ExecCompleted) string {
	text := "the command ended: " + end.GetReason()
	if end.GetMessage() != "" {
		text += ": " + end.GetMessage()
	}
	return text + " (exec " + end.GetExecId() + ")"
}

func (x *Exec) request(stdin io.Reader) (*computev1.ExecCommandRequest, error) {
	var err error
	if x.Sandbox, err = sandboxID(x.Sandbox); err != nil {
		return nil, err
	}
	if len(x.Command) > 0 && x.Command[0] == "--" {
		x.Command = x.Command[1:]
	}
	if len(x.Command) == 0 || x.Command[0] == "" {
		return nil, usagef("there is no command: sandtrail exec SANDBOX -- COMMAND ARGS")
	}
	env, err := environment(x.Env)
	if err != nil {
		return nil, err
	}
	req := &computev1.ExecCommandRequest{
		SandboxId: x.Sandbox, Command: x.Command[0], Args: x.Command[1:], Env: env, WorkingDir: x.Workdir, Detach: x.Detach,
		StopAtOutputLimit: x.StopAtLimit,
	}
	if x.OutputLimit != "" {
		if req.OutputLimitBytes, err = size("--output-limit", x.OutputLimit); err != nil {
			return nil, err
		}
	}
	if x.Timeout < 0 {
		return nil, usagef("--timeout: %s is negative", x.Timeout)
	}
	if x.Timeout > 0 {
		req.Timeout = durationpb.New(x.Timeout)
	}
	if x.Stdin {
		if req.Stdin, err = io.ReadAll(io.LimitReader(stdin, maxStdin+1)); err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		if len(req.GetStdin()) > maxStdin {
			return nil, usagef("stdin is over 512 KiB: copy it to a file with sandtrail cp - %s:PATH", x.Sandbox)
		}
	}
	return req, nil
}

// interrupts gives a context that ends with the second interrupt. The first asks the server to end the command, as soon as it is
// known under which id it runs.
func (x *Exec) interrupts(e *Env, api *client.Client, accepted chan string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals, stop := e.Signals()
	first := make(chan struct{})
	go func() {
		n := 0
		for {
			select {
			case <-signals:
				if n++; n == 1 {
					e.warn("ending the command; once more to leave at once")
					close(first)
					continue
				}
				cancel(errInterrupted)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		select {
		case <-first:
		case <-ctx.Done():
			return
		}
		var id string
		select {
		case id = <-accepted:
		case <-ctx.Done():
			return
		}
		call, done := context.WithTimeout(ctx, cancelWait)
		defer done()
		_, err := client.Retry(call, api, func(ctx context.Context) (*computev1.CancelExecResponse, error) {
			return api.CancelExec(ctx, &computev1.CancelExecRequest{SandboxId: x.Sandbox, ExecId: id})
		})
		if err != nil && ctx.Err() == nil {
			report(e.Stderr, aboutError{"end exec " + id, err}, x.json())
		}
	}()
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// output writes what an exec wrote: its bytes to stdout and stderr, or each event as a line of JSON.
type output struct {
	env            *Env
	json           bool
	stdout, stderr *kept
}

// kept is one stream that is hashed on its way.
type kept struct {
	io.Writer
	sum hash.Hash
}

func newOutput(e *Env, asJSON bool) *output {
	return &output{env: e, json: asJSON, stdout: &kept{e.Stdout, sha256.New()}, stderr: &kept{e.Stderr, sha256.New()}}
}

func (o *output) event(e *computev1.ExecEvent) error {
	var err error
	switch v := e.GetEvent().(type) {
	case *computev1.ExecEvent_Stdout:
		err = o.write(o.stdout, v.Stdout.GetData())
	case *computev1.ExecEvent_Stderr:
		err = o.write(o.stderr, v.Stderr.GetData())
	case *computev1.ExecEvent_Gap:
		if !o.json {
			o.env.warn("%s of %s were dropped here: it wrote more than its limit, or faster than it could be read", render.Bytes(v.Gap.GetTo()-v.Gap.GetFrom()), render.Clean(v.Gap.GetStream()))
		}
	case *computev1.ExecEvent_Heartbeat:
		return nil
	}
	if err == nil && o.json {
		err = render.Line(o.env.Stdout, e)
	}
	return err
}

func (o *output) write(k *kept, data []byte) error {
	k.sum.Write(data)
	if o.json {
		return nil
	}
	if _, err := k.Write(data); err != nil {
		return fmt.Errorf("write the command's output: %w", err)
	}
	return nil
}

// check compares what was written with the digests that were recorded where the program's output was read; false and a warning
// where they differ.
func (o *output) check(end *computev1.ExecCompleted) bool {
	same := true
	for _, s := range []struct {
		name string
		got  *kept
		want *computev1.OutputDigest
	}{{"stdout", o.stdout, end.GetStdout()}, {"stderr", o.stderr, end.GetStderr()}} {
		if len(s.want.GetSha256()) > 0 && !bytes.Equal(s.want.GetSha256(), s.got.sum.Sum(nil)) {
			o.env.warn("%s is not what the command wrote: its digest differs from the recorded one (exec %s)", s.name, end.GetExecId())
			same = false
		}
	}
	return same
}
