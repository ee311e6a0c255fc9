package cluster

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
)

// The images that every node has.
const (
	PauseImage   = "test.sandtrail.dev/pause:1"
	BusyboxImage = "test.sandtrail.dev/busybox:1"
)

const socket = "/run/containerd/containerd.sock"

// LoadTar gives the node every image of a tar file, in OCI layout or as Docker saves it, under the names that it holds.
func (c *Cluster) LoadTar(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	_, err = c.processes.Run(ctx, c.programs.CTR, "--address", socket, "--namespace", "k8s.io", "images", "import", "--local", path)
	return err
}

// LoadImage gives the node an image under a reference. Pods name it and pull it with IfNotPresent or Never.
func (c *Cluster) LoadImage(ctx context.Context, reference string, image v1.Image) error {
	f, err := os.CreateTemp(c.Dir, "import-*.tar")
	if err != nil {
		return err
	}
	path := f.Name()
	defer os.Remove(path)
	if err := errors.Join(WriteImage(f, reference, image), f.Close()); err != nil {
		return fmt.Errorf("write image %s: %w", reference, err)
	}
	return c.LoadTar(ctx, path)
}

// WriteImage writes an image as a tar of an OCI layout that names it.
func WriteImage(w io.Writer, reference string, image v1.Image) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "st-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{"io.containerd.image.name": ref.Name(), "org.opencontainers.image.ref.name": ref.Identifier()}
	if err := path.AppendImage(image, layout.WithAnnotations(names)); err != nil {
		return err
	}
	t := tar.NewWriter(w)
	if err := t.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return t.Close()
}

// LoadLayout gives the node the one image of a directory in OCI layout under a reference.
func (c *Cluster) LoadLayout(ctx context.Context, reference, dir string) error {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%s holds %d images, not one", dir, len(manifest.Manifests))
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	return c.LoadImage(ctx, reference, image)
}

// busyboxImage is an image of one static busybox with its applets as links.
func busyboxImage(busybox string, applets []string, cmd ...string) (v1.Image, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeBusybox(w, program, applets)) }()
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Cmd: cmd, Env: []string{"PATH=/bin"}, WorkingDir: "/"}
	return mutate.ConfigFile(image, file)
}

func writeBusybox(w io.Writer, program []byte, applets []string) error {
	t := tar.NewWriter(w)
	for _, dir := range []string{"bin/", "etc/", "root/", "proc/", "sys/", "dev/", "var/"} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return err
		}
	}
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return err
	}
	users := []byte("root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/tmp:/bin/sh\n")
	for _, f := range []struct {
		path string
		text []byte
	}{{"etc/passwd", users}, {"bin/busybox", program}} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: 0o755, Size: int64(len(f.text))}); err != nil {
			return err
		}
		if _, err := t.Write(f.text); err != nil {
			return err
		}
	}
	for _, applet := range applets {
		if applet == "busybox" {
			continue
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}); err != nil {
			return err
		}
	}
	return t.Close()
}

// loadBase gives the node the images that every node has.
func (c *Cluster) loadBase(ctx context.Context) error {
	list, err := c.processes.Run(ctx, c.programs.Busybox, "--list")
	if err != nil {
		return err
	}
	for reference, cmd := range map[string][]string{
		// Nobody asks a pause container to end: the runtime kills it.
		PauseImage: {"/bin/sleep", "2147483647"}, BusyboxImage: {"/bin/sh"},
	} {
		image, err := busyboxImage(c.programs.Busybox, strings.Fields(list), cmd...)
		if err != nil {
			return err
		}
		if err := c.LoadImage(ctx, reference, image); err != nil {
			return err
		}
	}
	return nil
}

// SandboxImage is the default image of sandboxes; LoadSandboxImage gives it to the node. The first time on a host builds it, about a minute.
const SandboxImage = "ghcr.io/paper-board/sandbox-python:v0.1.0"

func (c *Cluster) LoadSandboxImage(ctx context.Context, b binaries.Builder) error {
	path, err := b.SandboxImage(ctx)
	if err != nil {
		return err
	}
	return c.LoadTar(ctx, path)
}
