package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
)

// maxCode is the most bytes of code that a context takes at once.
const maxCode = 1 << 20

// RunCode is `sandtrail run`.
type RunCode struct {
	Remote
	Format
	In      string   `name:"context" placeholder:"ID" help:"The context, as context create printed it. Default: the sandbox's own, which is made when it is needed."`
	Timeout duration `placeholder:"SECONDS" help:"Interrupt it after this long, in seconds or as 1m30s. Default: 5 minutes."`
	Images  string   `type:"path" placeholder:"DIR" help:"Write the images that it shows into this directory."`
	Name    string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Code    []string `arg:"" help:"Python code, or - to read it from stdin. Several words are joined by spaces; behind -- they may begin with a dash."`
}

// Help is printed below the flags.
func (r *RunCode) Help() string {
	return "What the code prints comes out as it is, and behind it the value of its last expression. Variables, functions and imports are there " +
		"for the next run in the same context. Code that fails prints its error on stderr and ends this program with 1; one that was interrupted " +
		"keeps its variables."
}

// cellSaid is what a cell came to.
type cellSaid struct {
	Stdout, Stderr string
	Text           *string
	Error          *struct{ Name, Value, Traceback string }
	Results        []struct {
		Type string
		Data json.RawMessage
	}
	Truncated, Restarted bool
}

// exitCode is that of code that failed.
const exitCode = 1

// Run runs it.
func (r *RunCode) Run(e *Env) error {
	code, err := e.argument(strings.Join(r.Code, " "), maxCode)
	if err != nil {
		return err
	}
	switch {
	case code == "":
		return usagef("there is no code: sandtrail run NAME CODE")
	case len(code) > maxCode:
		return usagef("the code is over 1 MiB: put it into a file with sandtrail fs write %s PATH and import it", r.Name)
	}
	ctx, api, done, err := r.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	body := map[string]any{"code": code, "context_id": r.In, "timeout": time.Duration(r.Timeout).Seconds()}
	var answer json.RawMessage
	if err := api.JSON(ctx, http.MethodPost, named.Box(r.Name, "toolbox/code-interpreter/execute"), nil, body, &answer); err != nil {
		return err
	}
	var said cellSaid
	if err := json.Unmarshal(answer, &said); err != nil {
		return err
	}
	if err := r.show(e.Stdout, answer, func(w io.Writer) error { return said.tell(e, w) }); err != nil {
		return err
	}
	if r.Images != "" {
		if err := said.save(e, r.Images); err != nil {
			return err
		}
	}
	if said.Error != nil {
		return exitError(exitCode)
	}
	return nil
}

// tell prints output as it is, then the value, and what went wrong on stderr.
func (s *cellSaid) tell(e *Env, w io.Writer) error {
	if _, err := io.WriteString(w, s.Stdout); err != nil {
		return err
	}
	if _, err := io.WriteString(e.Stderr, s.Stderr); err != nil {
		return err
	}
	if s.Text != nil {
		if _, err := fmt.Fprintln(w, *s.Text); err != nil {
			return err
		}
	}
	if s.Truncated {
		e.warn("there was more output than an answer holds")
	}
	if s.Error == nil {
		return nil
	}
	lines := s.Error.Traceback
	if lines == "" || s.Error.Name == "KeyboardInterrupt" {
		lines += s.Error.Name + ": " + s.Error.Value + "\n"
	}
	_, err := io.WriteString(e.Stderr, lines)
	return err
}

// endings of files with images.
var endings = map[string]string{"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}

// save writes the images into a directory as image-1.png and so on, and over those of an earlier run.
func (s *cellSaid) save(e *Env, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	n := 0
	for _, r := range s.Results {
		ending, is := endings[r.Type]
		var data string
		if !is || json.Unmarshal(r.Data, &data) != nil {
			continue
		}
		image := []byte(data)
		if ending != "svg" {
			var err error
			if image, err = base64.StdEncoding.DecodeString(data); err != nil {
				return fmt.Errorf("the server sent an image that is no base64: %w", err)
			}
		}
		n++
		path := filepath.Join(dir, fmt.Sprintf("image-%d.%s", n, ending))
		if err := os.WriteFile(path, image, 0o600); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(e.Stderr, path); err != nil {
			return err
		}
	}
	return nil
}

// Contexts is `sandtrail context`.
type Contexts struct {
	Create  ContextCreate  `cmd:"" help:"Make a context and print its id."`
	List    ContextList    `cmd:"" help:"List the contexts that run in a sandbox."`
	Restart ContextRestart `cmd:"" help:"Give a context new variables, also while code runs in it."`
	Rm      ContextRm      `cmd:"" help:"End contexts."`
}

// contextPath is that of a sandbox's contexts, or of what is below it.
func contextPath(name string, parts ...string) string {
	return below(named.Box(name, "toolbox/code-interpreter/contexts"), parts...)
}

// ContextCreate is `sandtrail context create`.
type ContextCreate struct {
	Remote
	Format
	Cwd  string `placeholder:"DIR" help:"The directory in which its code runs. Default: the sandbox's own."`
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run makes one.
func (c *ContextCreate) Run(e *Env) error {
	body, err := json.Marshal(map[string]string{"language": "python", "cwd": c.Cwd})
	if err != nil {
		return err
	}
	return c.made(e, &c.Format, contextTime, named.Request{Method: http.MethodPost, Path: contextPath(c.Name), Body: bytes.NewReader(body)}, "id")
}

// contextTime bounds the start of an interpreter.
const contextTime = 2 * time.Minute

// ContextList is `sandtrail context list`.
type ContextList struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run lists them.
func (c *ContextList) Run(e *Env) error {
	return c.listed(e, &c.Format, named.Request{Method: http.MethodGet, Path: contextPath(c.Name)}, "contexts",
		[]string{"ID", "STATE", "DEFAULT", "CWD", "CREATED"}, columns("id", "state", "default", "cwd", "created_at"))
}

// ContextRestart is `sandtrail context restart`.
type ContextRestart struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
	ID   string `arg:"" name:"id" help:"The context."`
}

// Run restarts it.
func (c *ContextRestart) Run(e *Env) error {
	return c.made(e, &c.Format, contextTime, named.Request{Method: http.MethodPost, Path: contextPath(c.Name, c.ID, "restart")}, "id")
}

// ContextRm is `sandtrail context rm`.
type ContextRm struct {
	Remote
	Name string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	IDs  []string `arg:"" name:"id" help:"The contexts."`
}

// Run ends them. Failures of some do not keep the others.
func (c *ContextRm) Run(e *Env) error {
	return c.ended(e, callTimeout, c.IDs, func(id string) string { return contextPath(c.Name, id) }, "ENDED", "ended")
}
