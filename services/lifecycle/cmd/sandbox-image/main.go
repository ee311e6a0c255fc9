// Command sandbox-image writes the default image of sandboxes to a file, for a registry or a cluster that cannot build it: a tar as
// `docker load` and `ctr images import` take it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
)

type flags struct {
	Out       string `arg:"" help:"The tar file to write."`
	Reference string `default:"${reference}" help:"Name of the image in the file."`
	Cache     string `help:"Directory of what is fetched and built once; a directory of the user's unless set."`
}

func write(ctx context.Context, f flags) error {
	tag, err := name.NewTag(f.Reference)
	if err != nil {
		return err
	}
	last := time.Time{}
	image, err := debian.Build(ctx, debian.Options{CacheDir: f.Cache, Progress: func(stage string, done, total int64, note string) {
		if time.Since(last) < time.Second {
			return
		}
		last = time.Now()
		fmt.Fprintf(os.Stderr, "%s %d/%d %s\n", stage, done, total, note)
	}})
	if err != nil {
		return err
	}
	// What stands under the name is whole: others may read it at any time.
	if err := tarball.WriteToFile(f.Out+".part", tag, image); err != nil {
		return err
	}
	return os.Rename(f.Out+".part", f.Out)
}

func main() {
	var f flags
	k := kong.Parse(&f, kong.Name("sandbox-image"), kong.Vars{"reference": debian.Reference},
		kong.Description("Writes the default image of sandboxes as a tar file; builds it where it is not in the cache."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k.FatalIfErrorf(write(ctx, f))
}
