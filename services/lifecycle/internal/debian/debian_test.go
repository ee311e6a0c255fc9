package debian

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImage builds the image through the cache that all tests share and checks what a sandbox depends on.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: may build the image")
	}
	img, err := Build(t.Context(), Options{})
	require.NoError(t, err)
	config, err := img.ConfigFile()
	require.NoError(t, err)
	require.Contains(t, config.Config.Env, "HOME=/home/sandbox")
	require.Equal(t, "1000:1000", config.Config.User)

	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	r, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer r.Close()
	entries := map[string]*tar.Header{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		entries[strings.TrimSuffix(h.Name, "/")] = h
		require.Zero(t, h.Mode&0o6000, "set-id bits on %s", h.Name)
		if strings.HasSuffix(h.Name, ".pyc") {
			head := make([]byte, 8)
			_, err := io.ReadFull(tr, head)
			require.NoError(t, err)
			require.Equal(t, []byte{1, 0, 0, 0}, head[4:], "%s is checked against its source", h.Name)
		}
	}
	for _, name := range []string{"usr/bin/python3", "usr/bin/git", "usr/bin/curl", "usr/bin/pip3", "usr/bin/bash", "usr/bin/dash", "usr/bin/jq", "etc/ssl/certs/ca-certificates.crt"} {
		require.Contains(t, entries, name)
	}
	for link, target := range map[string]string{"bin": "usr/bin", "lib": "usr/lib", "usr/bin/sh": "dash", "usr/bin/awk": "gawk", "usr/bin/python": "python3"} {
		require.Contains(t, entries, link)
		require.Equal(t, target, entries[link].Linkname, link)
	}
	require.Equal(t, userID, entries["workspace"].Uid)
	require.Equal(t, userID, entries["home/sandbox"].Uid)
	require.EqualValues(t, 0o1777, entries["tmp"].Mode)
	compiled := 0
	for name, h := range entries {
		require.False(t, strings.HasPrefix(name, "usr/share/man/"), name)
		if strings.HasSuffix(name, ".pyc") {
			compiled++
		}
		if h.Typeflag == tar.TypeLink {
			require.Contains(t, entries, h.Linkname, "hard link %s", name)
		}
	}
	require.Greater(t, compiled, 500)
}

func TestLayerIsTheSameEveryTime(t *testing.T) {
	var first []byte
	for range 2 {
		tr, err := newTree(t.TempDir())
		require.NoError(t, err)
		require.NoError(t, tr.file("etc/b", "two", 0o644))
		require.NoError(t, tr.file("etc/a", "one", 0o600))
		tr.link("bin", "usr/bin")
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range sorted(tr.entries) {
			require.NoError(t, tr.writeEntry(w, tr.entries[name]))
		}
		require.NoError(t, w.Close())
		if first == nil {
			first = b.Bytes()
		}
		require.Equal(t, first, b.Bytes())
	}
}

func TestMergedPaths(t *testing.T) {
	require.Equal(t, "usr/lib/x86_64-linux-gnu/libc.so.6", merged("lib/x86_64-linux-gnu/libc.so.6"))
	require.Equal(t, "usr/libexec/x", merged("usr/libexec/x"))
	require.Equal(t, "libexec/x", merged("libexec/x"))
	require.Equal(t, "/usr/share/x", relink("bin/y", "usr/bin/y", "../usr/share/x"))
	require.Equal(t, "../share/x", relink("usr/bin/y", "usr/bin/y", "../share/x"))
	require.True(t, isDropped("libperl5.40"))
	require.False(t, isDropped("libpython3-stdlib"))
}
