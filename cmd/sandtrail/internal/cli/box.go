package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version"
)

// defaultURL is where a server listens that nobody told otherwise.
const defaultURL = "http://localhost:8080"

// Remote are the flags of every command about named sandboxes.
type Remote struct {
	APIURL     string `name:"api-url" placeholder:"URL" group:"The server" help:"Its URL. Also SANDTRAIL_API_URL, SANDRPOD_API_URL, or that of the context; otherwise http://localhost:8080."`
	APIKeyFile string `name:"api-key-file" env:"SANDTRAIL_API_KEY_FILE" type:"path" placeholder:"FILE" group:"The server" help:"File with the API key; or set SANDTRAIL_API_KEY or SANDRPOD_API_TOKEN to the key itself, or keep it in the context."`
	Tenant     string `env:"SANDTRAIL_TENANT" placeholder:"ID" group:"The server" help:"Tenant, for servers without API keys."`
	Context    string `name:"context-name" env:"SANDTRAIL_CONTEXT" placeholder:"NAME" group:"The server" help:"Context of the configuration to use; see config."`
	Plaintext  bool   `env:"SANDTRAIL_PLAINTEXT" group:"The server" help:"Send the API key to another host without TLS."`
}

// Format is how a command about named sandboxes prints.
type Format struct {
	Output string `short:"o" default:"table" enum:"table,json,yaml" help:"Print as ${enum}."`
}

// server gives the client that flags, environment and configuration lead to, in this order.
func (r *Remote) server() (*named.Client, error) {
	at, err := readConfig()
	if err != nil {
		return nil, err
	}
	use, err := at.pick(r.Context)
	if err != nil {
		return nil, err
	}
	key, err := (&Server{APIKeyFile: r.APIKeyFile}).key()
	if err != nil {
		return nil, err
	}
	o := named.Options{
		URL: first(r.APIURL, os.Getenv("SANDTRAIL_API_URL"), os.Getenv("SANDRPOD_API_URL"), use.URL, defaultURL),
		Key: first(key, os.Getenv("SANDRPOD_API_TOKEN"), use.Key), Tenant: first(r.Tenant, use.Tenant), Plaintext: r.Plaintext,
		Agent: "sandtrail/" + version.Version,
	}
	c, err := named.New(o)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func first(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}

// connect gives a client and a context that an interrupt or the timeout ends (0: no timeout). Call done at the end.
func (r *Remote) connect(e *Env, timeout time.Duration) (ctx context.Context, c *named.Client, done func(), err error) {
	if c, err = r.server(); err != nil {
		return nil, nil, nil, err
	}
	ctx, stop := e.interruptible()
	cancel := context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	return ctx, c, func() { cancel(); stop() }, nil
}

// callTimeout bounds calls that wait for nothing.
const callTimeout = time.Minute

// show prints an answer: as JSON or YAML all of it, for people what table writes.
func (f *Format) show(w io.Writer, answer json.RawMessage, table func(io.Writer) error) error {
	switch f.Output {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, answer, "", "  "); err != nil {
			return err
		}
		b.WriteByte('\n')
		_, err := w.Write(b.Bytes())
		return err
	case "yaml":
		return render.YAML(w, answer)
	}
	return table(w)
}

// text reads a string of an answer, empty where it has none.
func text(m map[string]any, name string) string {
	switch v := m[name].(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return fmt.Sprintf("%g", v)
	case []any:
		all := make([]string, len(v))
		for i, one := range v {
			all[i] = fmt.Sprint(one)
		}
		return strings.Join(all, "; ")
	default:
		return fmt.Sprint(v)
	}
}
