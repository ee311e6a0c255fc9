package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
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
func sessionPath(name string, below ...string) string {
	p := named.Box(name, "session")
	for _, b := range below {
		p += "/" + url.PathEscape(b)
	}
	return p
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
	ctx, api, done, err := s.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	answer, err := api.Raw(ctx, named.Request{Method: http.MethodPost, Path: sessionPath(s.Name), Body: bytes.NewReader(body)})
	if err != nil {
		return err
	}
	return s.show(e.Stdout, answer, func(w io.Writer) error {
		v := map[string]any{}
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, render.Clean(text(v, "session_id")))
		return err
	})
}

// SessionList is `sandtrail session list`.
type SessionList struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run lists them.
func (s *SessionList) Run(e *Env) error {
	ctx, api, done, err := s.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	answer, err := api.Raw(ctx, named.Request{Method: http.MethodGet, Path: sessionPath(s.Name)})
	if err != nil {
		return err
	}
	return s.show(e.Stdout, answer, func(w io.Writer) error {
		var all struct{ Sessions []map[string]any }
		if err := json.Unmarshal(answer, &all); err != nil {
			return err
		}
		t := render.Table{Header: []string{"ID", "STATE", "CREATED"}}
		for _, x := range all.Sessions {
			t.Rows = append(t.Rows, []string{text(x, "session_id"), text(x, "state"), text(x, "created_at")})
		}
		return t.Write(w)
	})
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
	ctx, api, done, err := s.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	answer, err := api.Raw(ctx, named.Request{Method: http.MethodGet, Path: sessionPath(s.Name, s.ID)})
	if err != nil {
		return err
	}
	return s.show(e.Stdout, answer, func(w io.Writer) error {
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
	command := strings.Join(s.Command, " ")
	if command == "-" {
		data, err := io.ReadAll(io.LimitReader(e.Stdin, maxSessionCommand+1))
		if err != nil {
			return fmt.Errorf("read stdin: %w", err)
		}
		command = string(data)
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
	return s.each(e, callTimeout, s.IDs, func(ctx context.Context, api *named.Client, id string) error {
		gone := map[string]any{}
		if err := api.JSON(ctx, http.MethodDelete, sessionPath(s.Name, id), nil, nil, &gone); err != nil {
			return err
		}
		said := "ended"
		if text(gone, "state") != "TERMINATED" {
			said = "is being ended"
		}
		_, err := fmt.Fprintf(e.Stdout, "%s  %s\n", render.Clean(id), said)
		return err
	})
}
