package debian

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is every file's time: the image depends on its content only.
var epoch = time.Unix(1700000000, 0).UTC()

// save writes the tree as an OCI layout of one image with one layer; work holds the uncompressed layer meanwhile.
func (t *tree) save(work, to string) error {
	name := filepath.Join(work, "layer.tar")
	if err := t.writeLayer(name); err != nil {
		return err
	}
	layer, err := tarball.LayerFromFile(name, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", runtime.GOARCH, v1.Time{Time: epoch}
	file.Config = v1.Config{
		User: "1000:1000", WorkingDir: "/workspace", Cmd: []string{"/bin/bash"},
		Env: []string{
			"PATH=" + home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=" + home, "LANG=C.UTF-8", "PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PAGER=cat",
		},
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return err
	}
	path, err := layout.Write(to, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendImage(img)
}

func (t *tree) writeLayer(name string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffered := bufio.NewWriterSize(f, 1<<20)
	w := tar.NewWriter(buffered)
	// A directory sorts before what it holds. Hard links come last, behind what they name.
	var last []string
	for _, name := range sorted(t.entries) {
		if t.entries[name].Typeflag == tar.TypeLink {
			last = append(last, name)
			continue
		}
		if err := t.writeEntry(w, t.entries[name]); err != nil {
			return err
		}
	}
	for _, name := range last {
		if err := t.writeEntry(w, t.entries[name]); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), buffered.Flush())
}

func sorted(entries map[string]*tar.Header) []string {
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (t *tree) writeEntry(w *tar.Writer, e *tar.Header) error {
	h := *e
	h.ModTime = epoch
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := t.root.Open(e.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
