// Command images builds the container images into a directory and pushes them where a registry is named.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandtrail/sandtrail/deploy/k8s/images"
)

type flags struct {
	Root     string   `default:"." type:"path" help:"Root of the source tree."`
	Out      string   `default:"dist" type:"path" help:"Directory for NAME.tar (what docker load and ctr images import take), NAME.cdx.json and digests.txt."`
	Registry string   `default:"registry.example.com/sandtrail" help:"What the names of the images begin with; the chart's image.registry."`
	Tag      string   `default:"dev" help:"Tag of the images and the version that the programs tell."`
	Arch     string   `default:"amd64" help:"Architecture."`
	Push     bool     `help:"Push to the registry, with the credentials of Docker's configuration."`
	Insecure bool     `help:"Push over plain HTTP."`
	Only     []string `help:"Build these only."`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("images"), kong.Description("Builds the container images."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := f.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func (f *flags) run(ctx context.Context) error {
	if err := os.MkdirAll(f.Out, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", f.Out, err)
	}
	var digests strings.Builder
	for _, p := range images.Programs() {
		if len(f.Only) > 0 && !slices.Contains(f.Only, p.Name) {
			continue
		}
		img, bill, err := images.Build(ctx, p, images.Options{Root: f.Root, Version: f.Tag, Arch: f.Arch})
		if err != nil {
			return err
		}
		digest, err := f.keep(ctx, p, img, bill)
		if err != nil {
			return fmt.Errorf("keep %s: %w", p.Name, err)
		}
		line := fmt.Sprintf("%s  %s\n", digest, f.ref(p))
		fmt.Print(line)
		digests.WriteString(line)
	}
	return os.WriteFile(filepath.Join(f.Out, "digests.txt"), []byte(digests.String()), 0o644) //nolint:gosec // for everybody
}

func (f *flags) ref(p images.Program) string {
	return f.Registry + "/sandtrail-" + p.Name + ":" + f.Tag
}

func (f *flags) keep(ctx context.Context, p images.Program, img v1.Image, bill []byte) (v1.Hash, error) {
	var options []name.Option
	if f.Insecure {
		options = append(options, name.Insecure)
	}
	ref, err := name.NewTag(f.ref(p), options...)
	if err != nil {
		return v1.Hash{}, err
	}
	at := filepath.Join(f.Out, "sandtrail-"+p.Name)
	if err := os.WriteFile(at+".cdx.json", bill, 0o644); err != nil { //nolint:gosec // for everybody
		return v1.Hash{}, err
	}
	if err := tarball.WriteToFile(at+".tar", ref, img); err != nil {
		return v1.Hash{}, err
	}
	if f.Push {
		if err := remote.Write(ref, img, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return v1.Hash{}, err
		}
	}
	return img.Digest()
}
