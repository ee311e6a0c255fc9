package cli

import (
	"net/http"
	"net/url"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
)

// SnapshotBox is `sandtrail snapshot`.
type SnapshotBox struct {
	Remote
	Format
	Name    string        `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Image   string        `placeholder:"REF" help:"What the image is called; with a registry's host it is pushed there too. Without it: as the sandbox."`
	Timeout time.Duration `default:"10m" help:"Give up after this long."`
}

// Run makes an image of a sandbox's root and prints its name, for `create --image`.
func (s *SnapshotBox) Run(e *Env) error {
	call := named.Request{Method: http.MethodPost, Path: named.Box(s.Name, "snapshot")}
	if s.Image != "" {
		call.Query = url.Values{"image": {s.Image}}
	}
	return s.made(e, &s.Format, s.Timeout, call, "image")
}
