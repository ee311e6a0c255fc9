package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
)

// Preview is `sandtrail preview`.
type Preview struct {
	Remote
	Format
	Name string        `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Port uint16        `arg:"" help:"The port that a program in it listens at."`
	Path string        `arg:"" optional:"" help:"A path, with its query if need be."`
	TTL  time.Duration `name:"ttl" default:"1h" placeholder:"DURATION" help:"How long the URL is good for, at most 24h (${default})."`
}

// Help is printed below the flags.
func (p *Preview) Help() string {
	return "Who has the URL reaches that port until its time is over, or the sandbox's end, without a key. Give it to whom you would show the page."
}

// Run prints a URL.
func (p *Preview) Run(e *Env) error {
	if p.TTL < time.Second || p.TTL%time.Second != 0 {
		return usageError{fmt.Errorf("--ttl must be a number of whole seconds, such as 90s or 1h")}
	}
	ctx, api, done, err := p.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	var answer json.RawMessage
	err = api.JSON(ctx, http.MethodPost, named.Box(p.Name, "preview"), nil, map[string]any{
		"port": p.Port, "path": p.Path, "ttl_seconds": int64(p.TTL / time.Second),
	}, &answer)
	if err != nil {
		return err
	}
	return p.show(e.Stdout, answer, func(w io.Writer) error {
		var v struct {
			URL string `json:"url"`
		}
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, v.URL)
		return err
	})
}
