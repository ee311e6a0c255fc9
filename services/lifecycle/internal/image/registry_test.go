package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// platform is an image whose config names another one.
func platform(t *testing.T, img v1.Image, system, arch string) v1.Image {
	t.Helper()
	file, err := img.ConfigFile()
	require.NoError(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture = system, arch
	img, err = mutate.ConfigFile(img, file)
	require.NoError(t, err)
	return img
}

// manifest replaces what a registry answers for the tag with a text of a media type.
func manifest(contentType, text string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, text)
		})
	}
}

// described is a manifest whose config is said to have a size and media type.
func described(t *testing.T, img v1.Image, change func(*v1.Manifest)) string {
	t.Helper()
	m, err := img.Manifest()
	require.NoError(t, err)
	m = m.DeepCopy()
	change(m)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	return string(text)
}

// missing has every path but that of the tag.
func missing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			next = http.NotFoundHandler()
		}
		next.ServeHTTP(w, r)
	})
}

func honest(next http.Handler) http.Handler { return next }

// What a registry gives under a name may be anything. What cannot run here is refused for good, with what is wrong with it, and
// nothing of it stays.
func TestWhatIsNoImageForThisHostIsRefused(t *testing.T) {
	good := imageOf(t, layerOf(t, file("x", "y")))
	device := &entry{tar.Header{Name: "dev/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}, ""}
	for name, c := range map[string]struct {
		img    v1.Image
		spoil  func(http.Handler) http.Handler
		reason fault.Reason
		says   string
	}{
		"missing":              {good, missing, fault.ReasonImageNotFound, "check its name and tag"},
		"another architecture": {platform(t, good, "linux", "riscv64"), honest, fault.ReasonImageInvalid, "riscv64"},
		"another system":       {platform(t, good, "windows", runtime.GOARCH), honest, fault.ReasonImageInvalid, "windows"},
		"a web page":           {good, manifest("text/html", "<html>sign in</html>"), fault.ReasonImageInvalid, "no image"},
		"nothing":              {good, manifest(string(types.OCIManifestSchema1), ""), fault.ReasonImageInvalid, "no image"},
		"an empty object":      {good, manifest(string(types.OCIManifestSchema1), "{}"), fault.ReasonImageInvalid, "config"},
		"schema 1":             {good, manifest(string(types.DockerManifestSchema1), "{}"), fault.ReasonImageInvalid, "schema 1"},
		"an index that is none": {
			good, manifest(string(types.OCIImageIndex), "[]"), fault.ReasonImageInvalid, "index",
		},
		"a huge manifest": {good, manifest(string(types.OCIManifestSchema1), strings.Repeat(" ", 5<<20)+"{}"), fault.ReasonImageInvalid, "manifest has"},
		"a huge config": {
			good, manifest(string(types.OCIManifestSchema1), described(t, good, func(m *v1.Manifest) { m.Config.Size = 1 << 40 })),
			fault.ReasonImageInvalid, "config has",
		},
		"a config of unknown size": {
			good, manifest(string(types.OCIManifestSchema1), described(t, good, func(m *v1.Manifest) { m.Config.Size = -1 })),
			fault.ReasonImageInvalid, "config has",
		},
		"an artifact": {
			good, manifest(string(types.OCIManifestSchema1), described(t, good, func(m *v1.Manifest) { m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json" })),
			fault.ReasonImageInvalid, "helm",
		},
		"many layers": {
			good, manifest(string(types.OCIManifestSchema1), described(t, good, func(m *v1.Manifest) {
				for range 300 {
					m.Layers = append(m.Layers, m.Layers[0])
				}
			})), fault.ReasonImageInvalid, "301 layers",
		},
		"huge":                 {imageOf(t, layerOf(t, file("zeros", strings.Repeat("\x00", 3<<20)))), honest, fault.ReasonImageInvalid, "larger"},
		"too many files":       {imageOf(t, layerOf(t, many(1001)...)), honest, fault.ReasonImageInvalid, "more files"},
		"no archive":           {imageOf(t, layerFrom(t, bytes.Repeat([]byte("no tar"), 1000))), honest, fault.ReasonImageInvalid, "no tar"},
		"a climb":              {imageOf(t, layerOf(t, file("../../etc/passwd", "evil"))), honest, fault.ReasonImageInvalid, "climbs"},
		"a hard link out":      {imageOf(t, layerOf(t, hard("h", "../../etc/passwd"))), honest, fault.ReasonImageInvalid, ""},
		"a device and a climb": {imageOf(t, layerOf(t, device), layerOf(t, file("a/../../b", ""))), honest, fault.ReasonImageInvalid, "climbs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			ref := registryOf(t, c.img, func(next http.Handler) http.Handler {
				spoilt := c.spoil(next)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "/manifests/") {
						asked++
					}
					spoilt.ServeHTTP(w, r)
				})
			})
			s := openStore(t, Options{MaxBytes: 2 << 20, MaxFiles: 1000})
			_, err := s.Ensure(t.Context(), ref, nil)
			require.True(t, fault.Is(err, c.reason), "%v", err)
			require.Contains(t, fault.From(err).Message, c.says)
			require.Zero(t, fault.From(err).RetryAfter, "the same again: %v", err)
			require.Equal(t, 1, asked, "it was asked again")
			left, err := filepath.Glob(filepath.Join(s.o.Dir, "rootfs", "*"))
			require.NoError(t, err)
			require.Empty(t, left)
			list, err := s.List()
			require.NoError(t, err)
			require.Empty(t, list)
		})
	}
}

func many(n int) (all []*entry) {
	for i := range n {
		all = append(all, file(fmt.Sprintf("f%d", i), ""))
	}
	return all
}

// Links, devices and special bits in layers that come from a registry stay inside, or are not made.
func TestPathTricksOfAPulledImageStayInside(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "canary"), []byte("kept"), 0o600))
	device := &entry{tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666}, ""}
	fifo := &entry{tar.Header{Name: "fifo", Typeflag: tar.TypeFifo, Mode: 0o666}, ""}
	suid := file("bin/su", "x")
	suid.h.Mode = 0o6755
	ref := registryOf(t, imageOf(t,
		layerOf(t, link("out", outside), link("up", "../../../../../../../.."+outside), link("canary", filepath.Join(outside, "canary"))),
		layerOf(t, file("out/canary", "evil"), file("up/other", "evil"), file("canary", "evil"), file("/abs", "inside"), device, fifo, suid),
	), honest)
	s := openStore(t, Options{})
	img, err := s.Ensure(t.Context(), ref, nil)
	require.NoError(t, err)
	kept, err := os.ReadFile(filepath.Join(outside, "canary"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept))
	require.NoFileExists(t, filepath.Join(outside, "other"))
	require.Equal(t, "inside", read(t, img, "abs"))
	require.NoError(t, filepath.WalkDir(img.Rootfs, func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		require.Zero(t, d.Type()&(os.ModeDevice|os.ModeCharDevice|os.ModeNamedPipe|os.ModeSocket), path)
		info, err := d.Info()
		require.NoError(t, err)
		if path != img.Rootfs {
			require.Zero(t, info.Mode()&(os.ModeSetuid|os.ModeSetgid), path)
		}
		return nil
	}))
}

// Of an index the variant for this host is taken, also from an index in it; one without such a variant is refused.
func TestIndexGivesTheVariantForThisHost(t *testing.T) {
	mine := platform(t, imageOf(t, layerOf(t, file("x", "mine"))), "linux", runtime.GOARCH)
	other := platform(t, imageOf(t, layerOf(t, file("x", "other"))), "linux", "riscv64")
	add := func(index v1.ImageIndex, img v1.Image, arch string) v1.ImageIndex {
		return mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	serve := func(index v1.ImageIndex) string {
		srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		t.Cleanup(srv.Close)
		ref, err := name.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/team/app:v1")
		require.NoError(t, err)
		require.NoError(t, remote.WriteIndex(ref, index))
		return ref.String()
	}
	both := add(add(empty.Index, other, "riscv64"), mine, runtime.GOARCH)
	for what, index := range map[string]v1.ImageIndex{
		"flat":   both,
		"nested": mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: both}),
	} {
		s := openStore(t, Options{})
		img, err := s.Ensure(t.Context(), serve(index), nil)
		require.NoError(t, err, what)
		require.Equal(t, "mine", read(t, img, "x"), what)
	}
	for what, index := range map[string]v1.ImageIndex{
		"only another": add(empty.Index, other, "riscv64"),
		"empty":        empty.Index,
		"a lie":        add(empty.Index, other, runtime.GOARCH),
	} {
		_, err := openStore(t, Options{}).Ensure(t.Context(), serve(index), nil)
		require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%s: %v", what, err)
		require.Contains(t, fault.From(err).Message, "linux/"+runtime.GOARCH, what)
		require.Zero(t, fault.From(err).RetryAfter, what)
	}
}
