package image

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

func file(name, content string) *entry {
	return &entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content}
}

func link(name, target string) *entry {
	return &entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func hard(name, target string) *entry {
	return &entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}, ""}
}

func dir(name string) *entry {
	return &entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

type entry struct {
	h       tar.Header
	content string
}

func layerOf(t *testing.T, entries ...*entry) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		require.NoError(t, w.WriteHeader(&e.h))
		_, err := w.Write([]byte(e.content))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return layerFrom(t, b.Bytes())
}

func layerFrom(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	require.NoError(t, err)
	return l
}

func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	require.NoError(t, err)
	img, err = mutate.Config(img, v1.Config{Env: []string{"A=b"}, WorkingDir: "/w"})
	require.NoError(t, err)
	return img
}

func openStore(t *testing.T, o Options) *Store {
	t.Helper()
	o.Dir = filepath.Join(t.TempDir(), "images")
	o.PrivateRegistries = true
	o.pause = 2 * time.Millisecond
	s, err := Open(o)
	require.NoError(t, err)
	return s
}

// ensure unpacks layers through a source.
func ensure(t *testing.T, o Options, layers ...v1.Layer) (Image, *Store, error) {
	t.Helper()
	img := imageOf(t, layers...)
	o.Sources = map[string]Source{"test/image:v1": func(context.Context, prepare.Progress) (v1.Image, error) { return img, nil }}
	s := openStore(t, o)
	got, err := s.Ensure(t.Context(), "test/image:v1", nil)
	return got, s, err
}

func read(t *testing.T, img Image, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(img.Rootfs, name))
	require.NoError(t, err)
	return string(data)
}

func TestUnpackKeepsWhatAnImageSays(t *testing.T) {
	suid := file("bin/su", "x")
	suid.h.Mode, suid.h.Uid, suid.h.Gid = 0o6755, 3, 4
	device := &entry{tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o600}, ""}
	tmp := dir("tmp")
	tmp.h.Mode = 0o1777
	img, _, err := ensure(t, Options{HostIDBase: 100000}, layerOf(t, dir("bin"), suid, device, tmp, file("/etc/abs", "inside"), link("l", "/etc/passwd"), hard("bin/su2", "/bin/su")))
	require.NoError(t, err)
	require.Equal(t, []string{"A=b"}, img.Env)
	require.Equal(t, "/w", img.WorkingDir)
	require.Equal(t, "inside", read(t, img, "etc/abs"))
	info, err := os.Lstat(filepath.Join(img.Rootfs, "bin/su"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode())
	if os.Geteuid() == 0 {
		st := info.Sys().(*syscall.Stat_t)
		require.EqualValues(t, 100003, st.Uid)
		require.EqualValues(t, 100004, st.Gid)
		require.EqualValues(t, 2, st.Nlink)
	}
	info, err = os.Lstat(filepath.Join(img.Rootfs, "tmp"))
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, info.Mode())
	require.NoFileExists(t, filepath.Join(img.Rootfs, "dev/sda"))
}

func TestWhiteouts(t *testing.T) {
	img, _, err := ensure(t, Options{},
		layerOf(t, file("a/one", "1"), file("a/two", "2"), file("b/old", "o"), file("b/sub/old", "o"), file("c", "c")),
		layerOf(t, file("b/new", "n"), file("b/sub/new", "n"), file("a/.wh.one", ""), file("b/.wh..wh..opq", ""), file(".wh.c", ""), file(".wh.absent", ""), file("a/two", "two")))
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(img.Rootfs, "a/one"))
	require.NoFileExists(t, filepath.Join(img.Rootfs, "c"))
	require.NoFileExists(t, filepath.Join(img.Rootfs, "b/old"))
	require.NoFileExists(t, filepath.Join(img.Rootfs, "b/sub/old"))
	require.Equal(t, "n", read(t, img, "b/new"), "what the opaque layer itself brings stays, also where it came first")
	require.Equal(t, "n", read(t, img, "b/sub/new"))
	require.Equal(t, "two", read(t, img, "a/two"))
}

// TestHostileLayers: nothing of a layer reaches outside of the image, whichever way it tries.
func TestHostileLayers(t *testing.T) {
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	for name, c := range map[string]struct {
		entries []*entry
		refused bool
	}{
		"climb":                      {[]*entry{file("../../../../../../../.."+canary, "evil")}, true},
		"climb in the middle":        {[]*entry{file("a/../../../x", "evil")}, true},
		"absolute":                   {[]*entry{file(canary, "evil")}, false},
		"through an absolute link":   {[]*entry{link("out", outside), file("out/canary", "evil")}, false},
		"through a climbing link":    {[]*entry{link("out", "../../../../../../../.."+outside), file("out/canary", "evil")}, false},
		"through two links":          {[]*entry{link("a", "b"), link("b", outside), file("a/canary", "evil")}, false},
		"onto a link":                {[]*entry{link("canary", canary), file("canary", "evil")}, false},
		"hard link outside":          {[]*entry{hard("h", "../../../../../../etc/passwd")}, true},
		"hard link absolute":         {[]*entry{hard("h", "/etc/passwd")}, true},
		"hard link through a link":   {[]*entry{link("e", "/etc"), hard("h", "e/passwd")}, true},
		"write through hard linked":  {[]*entry{link("l", canary), hard("h", "l"), file("h", "evil")}, false},
		"whiteout through a link":    {[]*entry{link("out", filepath.Dir(outside)), file("out/.wh."+filepath.Base(outside), "")}, false},
		"opaque through a link":      {[]*entry{link("out", outside), file("out/.wh..wh..opq", "")}, false},
		"whiteout of the parent":     {[]*entry{file("a/.wh...", "")}, true},
		"loop of links":              {[]*entry{link("a", "b"), link("b", "a"), file("a/x", "evil")}, true},
		"file below a file":          {[]*entry{file("a", "1"), file("a/b", "2")}, true},
		"owner out of range":         {[]*entry{{tar.Header{Name: "x", Typeflag: tar.TypeReg, Uid: 70000}, ""}}, true},
		"too deep":                   {[]*entry{file(strings.Repeat("d/", 400)+"x", "")}, true},
		"directory over a link":      {[]*entry{link("d", outside), dir("d"), file("d/canary", "evil")}, false},
		"mode through a link":        {[]*entry{link("d", outside), {tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o777}, ""}}, false},
		"hard link to a directory":   {[]*entry{dir("d"), hard("h", "d")}, true},
		"hard link to nothing":       {[]*entry{hard("h", "nothing")}, true},
		"name that is only a climb":  {[]*entry{file("..", "evil")}, true},
		"symlink with an empty name": {[]*entry{{tar.Header{Name: "s", Typeflag: tar.TypeSymlink}, ""}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			keep := filepath.Join(outside, "keep")
			require.NoError(t, os.WriteFile(keep, []byte("kept"), 0o600))
			before, err := os.Stat(outside)
			require.NoError(t, err)

			img, s, err := ensure(t, Options{}, layerOf(t, c.entries...))
			if c.refused {
				require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
				left, err := filepath.Glob(filepath.Join(s.o.Dir, "rootfs", "*"))
				require.NoError(t, err)
				require.Empty(t, left)
			} else {
				require.NoError(t, err)
				require.DirExists(t, img.Rootfs)
			}
			require.NoFileExists(t, canary)
			require.FileExists(t, keep)
			after, err := os.Stat(outside)
			require.NoError(t, err)
			require.Equal(t, before.Mode(), after.Mode())
		})
	}
}

func TestBounds(t *testing.T) {
	bomb := layerOf(t, file("zeros", strings.Repeat("\x00", 8<<20)))
	compressed, err := bomb.Size()
	require.NoError(t, err)
	require.Less(t, compressed, int64(64<<10), "small on the wire")
	_, s, err := ensure(t, Options{MaxBytes: 1 << 20}, bomb)
	require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
	left, err := filepath.Glob(filepath.Join(s.o.Dir, "rootfs", "*"))
	require.NoError(t, err)
	require.Empty(t, left)

	_, _, err = ensure(t, Options{MaxFiles: 2}, layerOf(t, file("a", ""), file("b", ""), file("c", "")))
	require.True(t, fault.Is(err, fault.ReasonImageInvalid))
	_, _, err = ensure(t, Options{MaxFiles: 2}, layerOf(t, file("a", ""), file("b", "")))
	require.NoError(t, err)
	_, _, err = ensure(t, Options{}, layerFrom(t, bytes.Repeat([]byte("no tar"), 1000)))
	require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
}

func TestLayersThatTheConfigDoesNotNameAreRefused(t *testing.T) {
	img := imageOf(t, layerOf(t, file("x", "what the config does not know")))
	honest, err := img.ConfigFile()
	require.NoError(t, err)
	other, err := layerOf(t, file("x", "y")).DiffID()
	require.NoError(t, err)
	for name, diffs := range map[string][]v1.Hash{"another": {other}, "none": nil, "one more": {honest.RootFS.DiffIDs[0], other}} {
		lie := honest.DeepCopy()
		lie.RootFS.DiffIDs = diffs
		forged, err := mutate.ConfigFile(img, lie)
		require.NoError(t, err)
		s := openStore(t, Options{Sources: map[string]Source{
			"test/image:v1": func(context.Context, prepare.Progress) (v1.Image, error) { return forged, nil },
		}})
		_, err = s.Ensure(t.Context(), "test/image:v1", nil)
		require.Error(t, err, name)
		left, err := filepath.Glob(filepath.Join(s.o.Dir, "rootfs", "*"))
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
}

func TestPathsAndRemove(t *testing.T) {
	img := imageOf(t, layerOf(t, file("x", "y")))
	path := filepath.Join(t.TempDir(), "layout")
	l, err := layout.Write(path, empty.Index)
	require.NoError(t, err)
	require.NoError(t, l.AppendImage(img))
	saved := filepath.Join(t.TempDir(), "saved.tar")
	tag, err := name.NewTag("a/b:c")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(saved, tag, img))

	s := openStore(t, Options{})
	first, err := s.Import(t.Context(), "a/layout:1", path, nil)
	require.NoError(t, err)
	require.Equal(t, "y", read(t, first, "x"))
	second, err := s.Import(t.Context(), "a/saved:1", saved, nil)
	require.NoError(t, err)
	require.Equal(t, "y", read(t, second, "x"))
	_, err = s.Import(t.Context(), "a/none:1", filepath.Join(path, "none"), nil)
	require.True(t, fault.Is(err, fault.ReasonImageInvalid))

	list, err := s.List()
	require.NoError(t, err)
	require.NotEmpty(t, list)
	again, err := s.Ensure(t.Context(), "a/layout:1", nil)
	require.NoError(t, err)
	require.Equal(t, first, again)

	reopened, err := Open(s.o)
	require.NoError(t, err)
	again, err = reopened.Ensure(t.Context(), "a/layout:1", nil)
	require.NoError(t, err)
	require.Equal(t, first, again)

	for _, i := range list {
		require.NoError(t, s.Remove(i.Digest))
		require.NoError(t, s.Remove(i.Digest))
	}
	require.NoDirExists(t, first.Rootfs)
	require.Error(t, s.Remove("sha256:../../x"))
	list, err = s.List()
	require.NoError(t, err)
	require.Empty(t, list)
}

// TestSourceIsAskedAgain: a new version of the program brings its own image, and one whose source fails has the last one.
func TestSourceIsAskedAgain(t *testing.T) {
	var src v1.Image
	var fails error
	o := Options{Sources: map[string]Source{"test/image:v1": func(context.Context, prepare.Progress) (v1.Image, error) { return src, fails }}}
	src = imageOf(t, layerOf(t, file("x", "old")))
	s := openStore(t, o)
	for _, want := range []string{"old", "new", "new"} {
		img, err := s.Ensure(t.Context(), "test/image:v1", nil)
		require.NoError(t, err)
		require.Equal(t, want, read(t, img, "x"))
		if want == "new" {
			src, fails = nil, io.ErrUnexpectedEOF
		}
		src = imageOf(t, layerOf(t, file("x", "new")))
		s, err = Open(s.o)
		require.NoError(t, err)
	}
}

// registryOf serves an image and lets a test spoil the answers.
func registryOf(t *testing.T, img v1.Image, spoil func(next http.Handler) http.Handler) string {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var spoiled atomic.Bool
	bad := spoil(handler)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if spoiled.Load() {
			bad.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	ref := strings.TrimPrefix(srv.URL, "http://") + "/team/app:v1"
	parsed, err := name.ParseReference(ref)
	require.NoError(t, err)
	require.NoError(t, remote.Write(parsed, img))
	spoiled.Store(true)
	return ref
}

func TestConcurrentEnsurePullsOnce(t *testing.T) {
	var blobs atomic.Int64
	ref := registryOf(t, imageOf(t, layerOf(t, file("x", "y"))), func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				blobs.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	})
	s := openStore(t, Options{})
	other, err := Open(s.o) // another process in all but name: it shares files and locks only
	require.NoError(t, err)
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = []*Store{s, other}[i%2].Ensure(t.Context(), ref, nil) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.EqualValues(t, 2, blobs.Load(), "one config, one layer")
}

func TestEnsureStopsWaitingWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	ref := registryOf(t, imageOf(t, layerOf(t, file("x", "y"))), func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-hold
			next.ServeHTTP(w, r)
		})
	})
	s := openStore(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Ensure(ctx, ref, nil)
	require.True(t, fault.Is(err, fault.ReasonStartDeadline), "%v", err)
	close(hold)
	_, err = s.Ensure(t.Context(), ref, nil)
	require.NoError(t, err, "the work went on")
}

func TestRegistryFailures(t *testing.T) {
	status := func(code int) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		}
	}
	blob := func(change func([]byte) []byte) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.URL.Path, "/blobs/") {
					next.ServeHTTP(w, r)
					return
				}
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				_, _ = w.Write(change(rec.Body.Bytes()))
			})
		}
	}
	for name, c := range map[string]struct {
		spoil  func(http.Handler) http.Handler
		reason fault.Reason
		retry  bool
	}{
		"no such image":    {status(404), fault.ReasonImageNotFound, false},
		"access refused":   {status(401), fault.ReasonImagePullFailed, false},
		"registry broken":  {status(503), fault.ReasonImagePullFailed, true},
		"rate limited":     {status(429), fault.ReasonImagePullFailed, true},
		"truncated blob":   {blob(func(b []byte) []byte { return b[:len(b)/2] }), fault.ReasonImagePullFailed, true},
		"changed blob":     {blob(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), fault.ReasonImagePullFailed, true},
		"blob with a tail": {blob(func(b []byte) []byte { return append(b, "tail"...) }), fault.ReasonImagePullFailed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ref := registryOf(t, imageOf(t, layerOf(t, file("x", strings.Repeat("content", 1000)))), c.spoil)
			s := openStore(t, Options{})
			_, err := s.Ensure(t.Context(), ref, nil)
			require.True(t, fault.Is(err, c.reason), "%v", err)
			require.Equal(t, c.retry, fault.From(err).RetryAfter > 0, "%v", err)
			list, err := s.List()
			require.NoError(t, err)
			require.Empty(t, list)
		})
	}
}

func TestReferencesThatReachInside(t *testing.T) {
	s := openStore(t, Options{})
	s.pull = newPuller(false, time.Millisecond)
	for _, ref := range []string{"127.0.0.1:1/a:b", "localhost:1/a:b", "169.254.169.254/a:b", "10.0.0.1:5000/a", "[::1]:5000/a:b", "100.64.0.1/a"} {
		err := s.pull.control("tcp", "127.0.0.1:5000", nil)
		require.ErrorIs(t, err, errPrivateAddress)
		_, err = s.once(t.Context(), ref, nil)
		require.Error(t, err, ref)
	}
	for _, at := range []string{"10.1.2.3:443", "[::1]:443", "[fd00::1]:443", "[::ffff:192.168.0.1]:443", "169.254.169.254:80", "0.0.0.0:80", "100.100.1.1:80"} {
		require.ErrorIs(t, s.pull.control("tcp", at, nil), errPrivateAddress, at)
	}
	require.NoError(t, s.pull.control("tcp", "192.0.2.1:443", nil))
	for _, ref := range []string{"", "/etc", "UPPER/case", "../../etc", "a/../b", "localhost/../x:v1", strings.Repeat("a", 600)} {
		_, err := s.Ensure(t.Context(), ref, nil)
		require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%q: %v", ref, err)
	}
}
