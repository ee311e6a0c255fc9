// Package images builds container images without a Docker daemon: one static program each, its bill of materials, nothing else. The same
// sources give the same digests.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Program is what an image holds.
type Program struct {
	// Name of the image behind "sandtrail-".
	Name string
	// Package that is built, as `go build` takes it in the root of the tree.
	Package string
	// Path in the image: /usr/bin/sandtrail-NAME unless set.
	Path string
}

func (p Program) path() string {
	if p.Path != "" {
		return p.Path
	}
	return "/usr/bin/sandtrail-" + p.Name
}

// Programs are all images.
func Programs() []Program {
	const services = "github.com/sandtrail/sandtrail/services/"
	var all []Program
	for _, s := range []string{"gateway", "lifecycle", "exec", "usage", "gc"} {
		all = append(all, Program{Name: s, Package: services + s + "/cmd/" + s})
	}
	return append(all,
		Program{Name: "cli", Package: "github.com/sandtrail/sandtrail/cmd/sandtrail"},
		Program{Name: "toolbox", Package: "github.com/sandtrail/sandtrail/toolbox/cmd/agent", Path: "/usr/bin/sandtrail-agent"}, // where pods of sandboxes take it from
		// The server that the chart starts, in the version that the tests run against.
		Program{Name: "nats", Package: "github.com/nats-io/nats-server/v2"},
	)
}

// Options of a build.
type Options struct {
	// Root of the source tree.
	Root string
	// Version that the programs tell; empty is dev.
	Version string
	// GOARCH of the images: amd64 unless set.
	Arch string
}

// User is whom programs run as: nobody that a host knows.
const User = "65532:65532"

const versionVariable = "github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version.Version"

// Build builds one image, and gives its bill of materials too (CycloneDX, JSON).
func Build(ctx context.Context, p Program, o Options) (v1.Image, []byte, error) {
	if o.Arch == "" {
		o.Arch = "amd64"
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	dir, err := os.MkdirTemp("", "sandtrail-image-")
	if err != nil {
		return nil, nil, fmt.Errorf("build %s: %w", p.Name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, p.Name)
	// Without what loads ClickHouse's library, by which programs would need a C library (noengine).
	// No paths, no times, no state of the checkout: what is built depends on sources, flags and the compiler only.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags=noengine", "-ldflags=-s -w -buildid= -X main.version="+o.Version+" -X "+versionVariable+"="+o.Version, "-o", binary, p.Package)
	cmd.Dir = o.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+o.Arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("build %s: %w\n%s", p.Name, err, out)
	}
	if err := static(binary); err != nil {
		return nil, nil, fmt.Errorf("build %s: %w", p.Name, err)
	}
	bill, err := Bill(binary, o.Version)
	if err != nil {
		return nil, nil, fmt.Errorf("bill of %s: %w", p.Name, err)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, nil, fmt.Errorf("build %s: %w", p.Name, err)
	}
	img, err := assemble(p, o, program, bill)
	if err != nil {
		return nil, nil, fmt.Errorf("assemble %s: %w", p.Name, err)
	}
	return img, bill, nil
}

// static refuses a program that asks for a loader: there is none in the image, and it would not start.
func static(binary string) error {
	f, err := elf.Open(binary)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is not static: it asks for a loader")
		}
	}
	return nil
}

func assemble(p Program, o Options, program, bill []byte) (v1.Image, error) {
	layer, err := layerOf([]file{
		{"etc/", nil, 0o755},
		{"etc/passwd", []byte("sandtrail:x:65532:65532::/:/nonexistent\n"), 0o644},
		{"etc/group", []byte("sandtrail:x:65532:\n"), 0o644},
		{"etc/ssl/", nil, 0o755},
		{"etc/ssl/certs/", nil, 0o755},
		{"etc/ssl/certs/ca-certificates.crt", authorities(), 0o644},
		{"tmp/", nil, 0o1777},
		{"usr/", nil, 0o755},
		{"usr/bin/", nil, 0o755},
		{strings.TrimPrefix(p.path(), "/"), program, 0o755},
		{"usr/share/", nil, 0o755},
		{"usr/share/sbom/", nil, 0o755},
		{"usr/share/sbom/sandtrail-" + p.Name + ".cdx.json", bill, 0o644},
	})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", o.Arch
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{
		User: User, WorkingDir: "/", Entrypoint: []string{p.path()}, Env: []string{"PATH=/usr/bin", "HOME=/tmp"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "sandtrail-" + p.Name, "org.opencontainers.image.version": o.Version,
			"org.opencontainers.image.source": "https://github.com/sandtrail/sandtrail", "org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, config)
}

// authorities are the public ones that Mozilla trusts, as of the version in go.mod, without those whose trust has an end that a list of
// certificates cannot say. Programs call issuers of tokens, webhooks and ClickHouse by https.
func authorities() []byte {
	var out []byte
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})...)
		}
	}
	return out
}

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

type file struct {
	name string
	data []byte
	mode int64
}

func layerOf(files []file) (v1.Layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, ModTime: epoch, Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Size: int64(len(f.data))}
		if f.data == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}
