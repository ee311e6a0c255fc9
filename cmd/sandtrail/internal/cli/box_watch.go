package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
)

// FSWatch is `sandtrail fs watch`.
type FSWatch struct {
	inBox
	Dir       string `arg:"" help:"The directory."`
	Recursive bool   `short:"r" help:"Also what is below."`
	Output    string `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}: with json each change is a line."`
}

// Help is printed below the flags.
func (f *FSWatch) Help() string {
	return "Goes on until Ctrl-C, or until the directory or the sandbox is gone. create, write, remove, rename (the old name; the new one is a " +
		"create), chmod, and overflow where there were more changes than are told."
}

const (
	// watchWait is how long the server waits for a change, in seconds; watchPause is between two calls when it cannot be reached, and watchPatience
	// how long that may go on.
	watchWait     = 20
	watchPause    = time.Second
	watchPatience = time.Minute
	// unwatchTime bounds the removal of the watcher at the end. One that is left behind ends by itself.
	unwatchTime = 5 * time.Second
)

// Run tells changes as they come.
func (f *FSWatch) Run(e *Env) error {
	ctx, api, done, err := f.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	var made struct {
		ID string `json:"watcher_id"`
	}
	route := named.Box(f.Name, "toolbox/watch")
	body := map[string]any{"path": f.Dir, "recursive": f.Recursive}
	if err := api.JSON(ctx, http.MethodPost, route+"/create", nil, body, &made); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unwatchTime)
		defer cancel()
		_ = api.JSON(ctx, http.MethodPost, route+"/remove", nil, map[string]any{"id": made.ID}, &struct{}{})
	}()
	after, heard := uint64(0), time.Now()
	for {
		var told struct {
			Events []struct {
				Name string `json:"name"`
				Type string `json:"type"`
			}
			Next uint64
		}
		query := url.Values{"id": {made.ID}, "after": {strconv.FormatUint(after, 10)}, "wait": {strconv.Itoa(watchWait)}}
		err := api.JSON(ctx, http.MethodGet, route+"/events", query, nil, &told)
		if fault.CodeOf(err) == fault.Unavailable && time.Since(heard) < watchPatience {
			if err := pause.For(ctx, watchPause); err != nil {
				return context.Cause(ctx)
			}
			continue
		}
		if err != nil {
			return err
		}
		after, heard = told.Next, time.Now()
		for _, c := range told.Events {
			if err := f.print(e, c.Name, c.Type); err != nil {
				return err
			}
		}
	}
}

func (f *FSWatch) print(e *Env, name, kind string) error {
	if f.Output == "json" {
		line, err := json.Marshal(struct {
			Name string `json:"name"`
			Type string `json:"type"`
		}{name, kind})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.Stdout, "%s\n", line)
		return err
	}
	_, err := fmt.Fprintf(e.Stdout, "%-8s %s\n", kind, render.Clean(name))
	return err
}
