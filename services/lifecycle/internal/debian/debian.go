// Package debian builds the sandbox image from Debian packages that the host's own apt fetches: wherever `apt-get install`
// works, this works, and the host's package state is neither read nor changed. It needs no root.
package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// Reference is the name of the image that Build makes.
const Reference = "ghcr.io/paper-board/sandbox-python:v0.1.0"

// The user that programs run as inside, and its home.
const (
	userID = 1000
	home   = "/home/sandbox"
)

// recipe is part of the cache key: raise it when the image's content changes for another reason than its packages.
const recipe = "2"

var packages = []string{
	"base-files", "libc-bin", "bash", "dash", "coreutils", "findutils", "grep", "sed", "gawk", "diffutils", "patch",
	"tar", "gzip", "bzip2", "xz-utils", "unzip", "procps", "util-linux", "hostname", "less", "jq", "netbase", "tzdata",
	"ca-certificates", "curl", "git", "python3", "python3-pip", "python3-venv",
}

// dropped come in by dependency but only serve the installation of packages, or programs that the image does not have. An entry
// that ends in * is a prefix.
var dropped = []string{
	"perl", "perl-modules*", "libperl*", "liberror-perl", "git-man", "usrmerge", "debconf*", "init-system-helpers",
	"libnumber-compare-perl", "libtext-glob-perl", "libfile-find-rule-perl", "libgdbm*", "dpkg",
}

// Options of a build.
type Options struct {
	// CacheDir is prepare.Options.CacheDir: the image, and apt's own lists while building, lie below it.
	CacheDir string
	Progress prepare.Progress
	Log      *slog.Logger
}

// Build returns the image from the cache, or makes it: about half a minute and 250 MB of temporary space. Two processes at once
// make it once. The same packages give the same image, byte for byte.
func Build(ctx context.Context, o Options) (v1.Image, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CacheDir == "" {
		dir, err := prepare.CacheDir()
		if err != nil {
			return nil, err
		}
		o.CacheDir = dir
	}
	dir := filepath.Join(o.CacheDir, "images", "sandbox-python-"+key())
	if img, err := open(dir); err == nil {
		return img, nil
	}
	release, err := prepare.Lock(ctx, dir+".lock")
	if err != nil {
		return nil, err
	}
	defer release()
	if img, err := open(dir); err == nil {
		return img, nil
	}
	if err := tools(); err != nil {
		return nil, err
	}
	return build(ctx, o, dir)
}

func key() string {
	sum := sha256.Sum256([]byte(recipe + "\x00" + runtime.GOARCH + "\x00" + strings.Join(packages, " ") + "\x00" + strings.Join(dropped, " ")))
	return hex.EncodeToString(sum[:])[:12]
}

// open reads the one image of an OCI layout.
func open(dir string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("%s holds %d images, not one", dir, len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}

func tools() error {
	var missing []string
	for _, program := range []string{"apt-get", "apt-config", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the built-in image is made from Debian packages and this host has no %s: name another image in the create request, or import one", strings.Join(missing, ", "))
	}
	return nil
}

func build(ctx context.Context, o Options, to string) (_ v1.Image, err error) {
	begin := time.Now()
	work, err := os.MkdirTemp(filepath.Dir(to), "build-")
	if err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	debs, err := fetch(ctx, filepath.Join(work, "apt"), o.Progress)
	if err != nil {
		return nil, fmt.Errorf("fetch packages: %w", err)
	}
	t, err := newTree(filepath.Join(work, "root"))
	if err != nil {
		return nil, err
	}
	for i, deb := range debs {
		o.Progress.Report("image: unpack", int64(i), int64(len(debs)), strings.SplitN(filepath.Base(deb), "_", 2)[0])
		if err := t.unpack(ctx, deb); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	o.Progress.Report("image: configure", 0, 0, "compiling Python's library")
	if err := t.configure(ctx); err != nil {
		return nil, fmt.Errorf("configure the image: %w", err)
	}
	o.Progress.Report("image: write", 0, 0, "")
	if err := t.save(work, filepath.Join(work, "layout")); err != nil {
		return nil, fmt.Errorf("write the image: %w", err)
	}
	// What is there but cannot be read is the rest of an interrupted removal.
	if err := os.RemoveAll(to); err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	if err := os.Rename(filepath.Join(work, "layout"), to); err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	o.Log.Info("built the sandbox image", "packages", len(debs), "files", len(t.entries), "bytes", t.bytes, "took", time.Since(begin).Round(time.Millisecond))
	return open(to)
}
