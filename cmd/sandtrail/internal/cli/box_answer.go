package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// below is a path with further parts, each escaped.
func below(path string, parts ...string) string {
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// answered makes a call and prints its answer: as it is in the format that was asked for, by tell for people.
func (r *Remote) answered(e *Env, f *Format, timeout time.Duration, call named.Request, tell func(w io.Writer, answer []byte) error) error {
	ctx, api, done, err := r.connect(e, timeout)
	if err != nil {
		return err
	}
	defer done()
	answer, err := api.Raw(ctx, call)
	if err != nil {
		return err
	}
	return f.show(e.Stdout, answer, func(w io.Writer) error { return tell(w, answer) })
}

// shown prints one document of an answer, for people the named fields of it.
func (r *Remote) shown(e *Env, f *Format, path string, fields []string) error {
	call := named.Request{Method: http.MethodGet, Path: path}
	return r.answered(e, f, callTimeout, call, func(w io.Writer, answer []byte) error { return fieldsOf(w, answer, fields) })
}

// listed prints the list that an answer has under a key, for people a row of each.
func (r *Remote) listed(e *Env, f *Format, call named.Request, key string, header []string, row func(map[string]any) []string) error {
	return r.answered(e, f, callTimeout, call, func(w io.Writer, answer []byte) error {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(answer, &fields); err != nil {
			return err
		}
		var all []map[string]any
		if list, given := fields[key]; given {
			if err := json.Unmarshal(list, &all); err != nil {
				return err
			}
		}
		t := render.Table{Header: header}
		for _, v := range all {
			t.Rows = append(t.Rows, row(v))
		}
		return t.Write(w)
	})
}

// columns make a row of these fields.
func columns(names ...string) func(map[string]any) []string {
	return func(v map[string]any) []string {
		row := make([]string, 0, len(names))
		for _, name := range names {
			row = append(row, text(v, name))
		}
		return row
	}
}

// made makes a call and prints, for people, the field of its answer that names what it made.
func (r *Remote) made(e *Env, f *Format, timeout time.Duration, call named.Request, field string) error {
	return r.answered(e, f, timeout, call, func(w io.Writer, answer []byte) error {
		v := map[string]any{}
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, render.Clean(text(v, field)))
		return err
	})
}

// ended deletes one after the other and says of each whether it has come to its last state or is on its way there.
func (r *Remote) ended(e *Env, timeout time.Duration, names []string, path func(string) string, last, said string) error {
	return r.each(e, timeout, names, func(ctx context.Context, api *named.Client, name string) error {
		gone := map[string]any{}
		if err := api.JSON(ctx, http.MethodDelete, path(name), nil, nil, &gone); err != nil {
			return err
		}
		how := said
		if text(gone, "state") != last {
			how = "is being " + said
		}
		_, err := fmt.Fprintf(e.Stdout, "%s  %s\n", render.Clean(name), how)
		return err
	})
}

// argument joins words to one text, or reads up to most bytes and one more from stdin where that is what they say.
func (e *Env) argument(words string, most int) (string, error) {
	if words != "-" {
		return words, nil
	}
	data, err := io.ReadAll(io.LimitReader(e.Stdin, int64(most)+1))
	if err != nil {
		return "", fmt.Errorf("read stdin: %w", err)
	}
	return string(data), nil
}
