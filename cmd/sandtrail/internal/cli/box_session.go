package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// maxSessionCommand is the most bytes of a command that a session takes.
const maxSessionCommand = 64 << 10

// Sessions is `sandtrail session`.
type Sessions struct {
	Create SessionCreate `cmd:"" help:"Start a shell that keeps its state, and print its id."`
	List   SessionList   `cmd:"" help:"List the sessions that run in a sandbox."`
	Get    SessionGet    `cmd:"" help:"Show a session."`
	Exec   SessionExec   `cmd:"" help:"Run a command in a session; ends with its exit code."`
	Delete SessionDelete `cmd:"" help:"End sessions and all that runs in them."`
}

// sessionPath is that of a sandbox's sessions, or of what is below it.
func sessionPath(name string, parts ...string) string {
	return below(named.Box(name, "session"), parts...)
}

// SessionCreate is `sandtrail session create`.
type SessionCreate struct {
	Remote
	Format
	Cwd  string   `placeholder:"DIR" help:"The directory in which it begins. Default: the sandbox's own."`
	Env  []string `short:"e" sep:"none" placeholder:"K=V" help:"A variable; K alone takes it from here."`
	Name string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	ID   string   `arg:"" optional:"" name:"id" help:"What to call it. Default: an id that the server makes."`
}

// Run makes one.
func (s *SessionCreate) Run(e *Env) error {
	env, err := environment(s.Env)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"session_id": s.ID, "cwd": s.Cwd, "env": env})
	if err != nil {
		return err
	}
	return s.made(e, &s.Format, callTimeout, named.Request{Method: http.MethodPost, Path: sessionPath(s.Name), Body: bytes.NewReader(body)}, "session_id")
}

// SessionList is `sandtrail session list`.
type SessionList struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run lists them.
func (s *SessionList) Run(e *Env) error {
	return s.listed(e, &s.Format, named.Request{Method: http.MethodGet, Path: sessionPath(s.Name)}, "sessions",
		[]string{"ID", "STATE", "CREATED"}, columns("session_id", "state", "created_at"))
}

// SessionGet is `sandtrail session get`.
type SessionGet struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
	ID   string `arg:"" name:"id" help:"The session."`
}

// Run shows one.
func (s *SessionGet) Run(e *Env) error {
	call := named.Request{Method: http.MethodGet, Path: sessionPath(s.Name, s.ID)}
	return s.answered(e, &s.Format, callTimeout, call, func(w io.Writer, answer []byte) error {
		v := map[string]any{}
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
		var fields []render.Field
		for _, name := range []string{"session_id", "execution_id", "state", "created_at", "ended_at", "reason", "exit_code"} {
			if said := text(v, name); said != "" {
				fields = append(fields, render.Field{Name: name, Value: said})
			}
		}
		return render.Fields(w, fields)
	})
}

// SessionExec is `sandtrail session exec`.
type SessionExec struct {
	Remote
	Format
	Timeout duration `placeholder:"SECONDS" help:"Interrupt it after this long, in seconds or as 1m30s. Default: the server's."`
	Name    string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	ID      string   `arg:"" name:"id" help:"The session."`
	Command []string `arg:"" help:"The command, or - to read it from stdin. Several words are joined by spaces; behind -- they may begin with a dash."`
}

// Help is printed below the flags.
func (s *SessionExec) Help() string {
	return "The command's stdout and stderr come out as they are once it has ended, and its exit code is this program's; 124 is one that was " +
		"interrupted because it took too long. Directory, variables and functions are there for the next command. Ctrl-C leaves; the command goes " +
		"on, and the session takes no other until it has ended.\n\n" + exitHelp
}

// Run runs a command.
func (s *SessionExec) Run(e *Env) error {
	command, err := e.argument(strings.Join(s.Command, " "), maxSessionCommand)
	if err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(command) == "":
		return usagef("there is no command: sandtrail session exec NAME ID COMMAND")
	case len(command) > maxSessionCommand:
		return usagef("the command is over 64 KiB: put it into a file with sandtrail fs write %s PATH and run that", s.Name)
	}
	ctx, api, done, err := s.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	var answer json.RawMessage
	body := map[string]any{"command": command, "timeout": time.Duration(s.Timeout).Seconds()}
	if err := api.JSON(ctx, http.MethodPost, sessionPath(s.Name, s.ID, "exec"), nil, body, &answer); err != nil {
		return err
	}
	var said sessionSaid
	if err := json.Unmarshal(answer, &said); err != nil {
		return err
	}
	if err := s.show(e.Stdout, answer, func(w io.Writer) error { return said.tell(e, w) }); err != nil {
		return err
	}
	if said.ExitCode != 0 {
		return exitError(said.ExitCode)
	}
	return nil
}

// sessionSaid is what a command in a session came to.
type sessionSaid struct {
	Stdout       string `json:"stdout"`
	Stderr       string `json:"stderr"`
	StdoutBase64 string `json:"stdout_base64"`
	StderrBase64 string `json:"stderr_base64"`
	ExitCode     int    `json:"exit_code"`
	Truncated    bool   `json:"truncated"`
	Message      string `json:"message"`
}

// tell prints output byte for byte.
func (s *sessionSaid) tell(e *Env, w io.Writer) error {
	for _, stream := range []struct {
		to          io.Writer
		text, bytes string
	}{{w, s.Stdout, s.StdoutBase64}, {e.Stderr, s.Stderr, s.StderrBase64}} {
		data := []byte(stream.text)
		if stream.bytes != "" {
			var err error
			if data, err = base64.StdEncoding.DecodeString(stream.bytes); err != nil {
				return fmt.Errorf("the server sent output that is no base64: %w", err)
			}
		}
		if _, err := stream.to.Write(data); err != nil {
			return err
		}
	}
	if s.Truncated {
		e.warn("there was more output than an answer holds")
	}
	if s.Message != "" {
		e.warn("%s", render.Clean(s.Message))
	}
	return nil
}

// SessionDelete is `sandtrail session delete`.
type SessionDelete struct {
	Remote
	Name string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	IDs  []string `arg:"" name:"id" help:"The sessions."`
}

// Run ends them. Failures of some do not keep the others.
func (s *SessionDelete) Run(e *Env) error {
	return s.ended(e, callTimeout, s.IDs, func(id string) string { return sessionPath(s.Name, id) }, "TERMINATED", "ended")
}
