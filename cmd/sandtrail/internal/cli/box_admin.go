package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// Update is `sandtrail update`.
type Update struct {
	Remote
	Format
	Name     string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	TTL      duration `name:"ttl" placeholder:"SECONDS" help:"How long it is to live from now on, at least, in seconds or as 1h30m. Its time never gets shorter."`
	Label    []string `short:"l" sep:"none" placeholder:"K=V" help:"Its labels from now on: those that are not given are gone."`
	NoLabels bool     `name:"no-labels" help:"Take all labels from it."`
	Egress   []string `sep:"none" placeholder:"RULE" help:"Where its programs may connect to from now on, as create has it: rules that are not given are gone."`
	NoEgress bool     `name:"no-egress" help:"Let its programs connect to nothing from now on."`
}

// Run changes what is given and shows the sandbox.
func (u *Update) Run(e *Env) error {
	body := map[string]any{}
	if u.TTL > 0 {
		if time.Duration(u.TTL) < time.Second {
			return usagef("--ttl: %s is less than a second", time.Duration(u.TTL))
		}
		body["ttl_seconds"] = int64(time.Duration(u.TTL) / time.Second)
	}
	switch {
	case u.NoLabels && len(u.Label) > 0:
		return usagef("--no-labels and --label exclude each other")
	case u.NoLabels:
		body["labels"] = map[string]string{}
	case len(u.Label) > 0:
		all, err := labels(u.Label)
		if err != nil {
			return err
		}
		body["labels"] = all
	}
	switch {
	case u.NoEgress && len(u.Egress) > 0:
		return usagef("--no-egress and --egress exclude each other")
	case u.NoEgress || len(u.Egress) > 0:
		rules, err := egress(u.Egress)
		if err != nil {
			return err
		}
		body["egress"] = rules
	}
	if len(body) == 0 {
		return usagef("there is nothing to change: give --ttl, --label, --no-labels, --egress or --no-egress")
	}
	ctx, api, done, err := u.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	var answer json.RawMessage
	if err := api.JSON(ctx, http.MethodPatch, named.Box(u.Name), nil, body, &answer); err != nil {
		return err
	}
	return u.show(e.Stdout, answer, func(w io.Writer) error {
		return fieldsOf(w, answer, []string{"name", "state", "expires_at", "labels", "egress"})
	})
}

// Token is `sandtrail token`.
type Token struct {
	Create TokenCreate `cmd:"" help:"Make an API key and print it, this once."`
	List   TokenList   `cmd:"" aliases:"ls" help:"List the API keys that work; none is shown itself."`
	Rm     TokenRm     `cmd:"" help:"End API keys: they work no longer within a second."`
}

const tokens = "/api/v1/tokens"

// TokenCreate is `sandtrail token create`.
type TokenCreate struct {
	Remote
	Format
	Name   string   `arg:"" optional:"" help:"What it is for."`
	Role   string   `placeholder:"ROLE" help:"What it allows: admin is all, user all but what is for administrators. Default: user."`
	Scopes []string `placeholder:"SCOPE" help:"What it allows instead: create, inspect, execute, files, stop, admin."`
}

// Run makes a key of the caller's tenant.
func (c *TokenCreate) Run(e *Env) error {
	body := map[string]any{"name": c.Name}
	if c.Role != "" {
		body["role"] = c.Role
	}
	if len(c.Scopes) > 0 {
		body["scopes"] = c.Scopes
	}
	ctx, api, done, err := c.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	var answer json.RawMessage
	if err := api.JSON(ctx, http.MethodPost, tokens, nil, body, &answer); err != nil {
		return err
	}
	err = c.show(e.Stdout, answer, func(w io.Writer) error {
		return fieldsOf(w, answer, []string{"token", "id", "name", "prefix", "role", "created_at"})
	})
	e.warn("this is the only time that the key is shown")
	return err
}

// TokenList is `sandtrail token list`.
type TokenList struct {
	Remote
	Format
}

// Run lists the keys of the caller's tenant.
func (l *TokenList) Run(e *Env) error {
	return l.listed(e, &l.Format, named.Request{Method: http.MethodGet, Path: tokens}, "tokens",
		[]string{"PREFIX", "NAME", "ROLE", "ID", "CREATED"}, columns("prefix", "name", "role", "id", "created_at"))
}

// TokenRm is `sandtrail token rm`.
type TokenRm struct {
	Remote
	Prefixes []string `arg:"" name:"prefix" help:"How they begin, as in the list, or their ids."`
}

// Run revokes keys one after the other.
func (r *TokenRm) Run(e *Env) error { return r.remove(e, tokens, r.Prefixes, "revoked") }

// PoderDelete is `sandtrail poder delete`.
type PoderDelete struct {
	Remote
	IDs []string `arg:"" name:"id" help:"The workers' names."`
}

// Run takes workers from the list that are silent.
func (d *PoderDelete) Run(e *Env) error { return d.remove(e, "/api/v1/poders", d.IDs, "removed") }

// remove deletes what stands below a path, one after the other.
func (r *Remote) remove(e *Env, path string, names []string, said string) error {
	return r.each(e, callTimeout, names, func(ctx context.Context, api *named.Client, name string) error {
		if _, err := api.Raw(ctx, named.Request{Method: http.MethodDelete, Path: path + "/" + url.PathEscape(name)}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(e.Stdout, "%s  %s\n", name, said)
		return err
	})
}

// fieldsOf prints the named fields of a document for people.
func fieldsOf(w io.Writer, answer json.RawMessage, names []string) error {
	v := map[string]any{}
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	var out []render.Field
	for _, name := range names {
		value := text(v, name)
		if pairs, ok := v[name].(map[string]any); ok {
			var all []string
			for _, k := range slices.Sorted(maps.Keys(pairs)) {
				all = append(all, k+"="+text(pairs, k))
			}
			value = strings.Join(all, " ")
		}
		title := strings.ReplaceAll(name, "_", " ")
		out = append(out, render.Field{Name: strings.ToUpper(title[:1]) + title[1:], Value: value})
	}
	return render.Fields(w, out)
}
