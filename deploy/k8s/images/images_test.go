package images_test

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/deploy/k8s/images"
)

const root = "../../.."

var toolbox = func() images.Program {
	all := images.Programs()
	return all[slices.IndexFunc(all, func(p images.Program) bool { return p.Name == "toolbox" })]
}()

func digest(t *testing.T, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	require.NoError(t, err)
	return d.String()
}

// content reads every file of an image.
func content(t *testing.T, img v1.Image) (map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	headers, data := map[string]*tar.Header{}, map[string][]byte{}
	r := tar.NewReader(mutate.Extract(img))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, data
		}
		require.NoError(t, err)
		headers[h.Name] = h
		data[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

func TestTheSameSourcesGiveTheSameImageWhereverTheyAre(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds programs")
	}
	here, bill, err := images.Build(t.Context(), toolbox, images.Options{Root: root, Version: "v1"})
	require.NoError(t, err)

	elsewhere := copied(t, "toolbox", "proto")
	there, _, err := images.Build(t.Context(), toolbox, images.Options{Root: elsewhere, Version: "v1"})
	require.NoError(t, err)
	require.Equal(t, digest(t, here), digest(t, there))
	other, _, err := images.Build(t.Context(), toolbox, images.Options{Root: root, Version: "v2"})
	require.NoError(t, err)
	require.NotEqual(t, digest(t, here), digest(t, other), "another version is another image")

	config, err := here.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, images.User, config.Config.User)
	require.Equal(t, []string{"/usr/bin/sandtrail-agent"}, config.Config.Entrypoint)
	headers, data := content(t, here)
	require.Equal(t, int64(0o755), headers["usr/bin/sandtrail-agent"].Mode)
	for name, h := range headers {
		require.Zero(t, h.Uid, "%s belongs to root: who runs cannot change it", name)
		require.Zero(t, h.ModTime.Unix(), name)
	}
	require.Equal(t, bill, data["usr/share/sbom/sandtrail-toolbox.cdx.json"])
	require.False(t, bytes.Contains(data["usr/bin/sandtrail-agent"], []byte(mustAbs(t, root))), "it names no path of this machine")
	checkBill(t, bill)
	trusts(t, data["etc/ssl/certs/ca-certificates.crt"])
	pushes(t, here)
}

// copied copies the workspace, of which only some modules have their sources: all of them say which versions are built.
func copied(t *testing.T, whole ...string) string {
	t.Helper()
	to := t.TempDir()
	file := func(name string) {
		data, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(to, name), data, 0o600))
	}
	file("go.work")
	file("go.work.sum")
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	for line := range strings.Lines(string(work)) {
		module, used := strings.CutPrefix(strings.TrimSpace(line), "./")
		switch {
		case !used:
		case slices.Contains(whole, module):
			require.NoError(t, os.CopyFS(filepath.Join(to, module), os.DirFS(filepath.Join(root, module))))
		default:
			file(module + "/go.mod")
			file(module + "/go.sum")
		}
	}
	return to
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	require.NoError(t, err)
	return abs + "/"
}

// trusts looks whether public authorities can be read where Go and others look for them.
func trusts(t *testing.T, authorities []byte) {
	t.Helper()
	names := map[string]bool{}
	for rest := authorities; len(rest) > 0; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		require.NotNil(t, block)
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.True(t, c.IsCA)
		names[c.Subject.CommonName] = true
	}
	require.Greater(t, len(names), 80)
	require.Contains(t, names, "ISRG Root X1")
}

func checkBill(t *testing.T, bill []byte) {
	t.Helper()
	var b struct {
		BOMFormat, SpecVersion, SerialNumber string
		Metadata                             struct {
			Timestamp string
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version, PURL string }
	}
	require.NoError(t, json.Unmarshal(bill, &b))
	require.Equal(t, "CycloneDX", b.BOMFormat)
	require.Empty(t, b.SerialNumber)
	require.Empty(t, b.Metadata.Timestamp)
	require.Equal(t, "v1", b.Metadata.Component.Version)
	names := map[string]string{}
	for _, c := range b.Components {
		names[c.Name] = c.Version
		require.True(t, strings.HasPrefix(c.PURL, "pkg:golang/"), c.Name)
		require.NotEmpty(t, c.Version, c.Name)
	}
	require.Contains(t, names, "google.golang.org/protobuf")
	require.Equal(t, "v1", names["github.com/sandtrail/sandtrail/proto"])
	require.True(t, strings.HasPrefix(names["std"], "go1."))
}

// pushes sends the image to a registry and takes it back.
func pushes(t *testing.T, img v1.Image) {
	t.Helper()
	s := httptest.NewServer(registry.New())
	defer s.Close()
	ref, err := name.NewTag(strings.TrimPrefix(s.URL, "http://") + "/sandtrail/sandtrail-toolbox:v1")
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, img))
	back, err := remote.Image(ref)
	require.NoError(t, err)
	require.Equal(t, digest(t, img), digest(t, back))
	require.NoError(t, validate.Image(back))
}
