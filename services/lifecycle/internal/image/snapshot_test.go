package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
)

func tarOf(t *testing.T, entries ...*entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		require.NoError(t, w.WriteHeader(&e.h))
		_, err := io.WriteString(w, e.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

func of(tenant, ref string, base Image, changes []byte) Snapshot {
	return Snapshot{
		Tenant: tenant, Ref: ref, Sandbox: "s", Sequence: 7, At: time.Unix(1_700_000_000, 5), Base: base, BaseRef: "test/image:v1",
		Changes: func(_ context.Context, out io.Writer) error {
			_, err := out.Write(changes)
			return err
		},
		Used: func(string) bool { return false },
	}
}

func TestASnapshotIsAnImageForItsTenantAndForARegistry(t *testing.T) {
	base, s, err := ensure(t, Options{}, layerOf(t, dir("a"), file("a/kept", "1"), file("a/gone", "2"), hard("a/second", "a/kept"), link("l", "/a")))
	require.NoError(t, err)
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	changes := tarOf(t, file("a/.wh.gone", ""), file("b", "new"), dir("d"), hard("d/b", "b"), link("d/up", "../../../etc/passwd"))

	ref := host + "/team/mine:1"
	taken, err := s.Snapshot(t.Context(), of("acme", ref, base, changes), nil)
	require.NoError(t, err)
	require.True(t, taken.Pushed)
	require.EqualValues(t, 5, taken.Files)
	img, err := s.EnsureFor(t.Context(), "acme", ref, nil)
	require.NoError(t, err)
	require.Equal(t, taken.Digest, img.Digest)
	require.Equal(t, []string{"1", "1", "new", "new"}, []string{read(t, img, "a/kept"), read(t, img, "a/second"), read(t, img, "b"), read(t, img, "d/b")})
	_, err = os.Lstat(filepath.Join(img.Rootfs, "a/gone"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	// What others get of the registry is a whole image, of two layers, that says what it is of.
	tag, err := name.NewTag(ref)
	require.NoError(t, err)
	pulled, err := remote.Image(tag)
	require.NoError(t, err)
	require.NoError(t, validate.Image(pulled))
	digest, err := pulled.Digest()
	require.NoError(t, err)
	require.Equal(t, taken.Digest, digest.String())
	config, err := pulled.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		LabelSandbox: "s", LabelSequence: "7", "org.opencontainers.image.base.name": "test/image:v1", "org.opencontainers.image.base.digest": base.Digest,
	}, config.Config.Labels)
	require.Len(t, config.History, 2)

	// The same changes are the same image, also where everything was unpacked at another time.
	again, err := s.Snapshot(t.Context(), of("acme", "mine:2", base, changes), nil)
	require.NoError(t, err)
	require.Equal(t, taken.Digest, again.Digest)
	other, apart, err := ensure(t, Options{}, layerOf(t, dir("a"), file("a/kept", "1"), file("a/gone", "2"), hard("a/second", "a/kept"), link("l", "/a")))
	require.NoError(t, err)
	elsewhere, err := apart.Snapshot(t.Context(), of("acme", "mine:2", other, changes), nil)
	require.NoError(t, err)
	require.Equal(t, taken.Digest, elsewhere.Digest)
}

func TestASnapshotIsNoOtherTenants(t *testing.T) {
	base, s, err := ensure(t, Options{}, layerOf(t, file("a", "1")))
	require.NoError(t, err)
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	taken, err := s.Snapshot(t.Context(), of("acme", "secret:1", base, tarOf(t, file("b", "secret"))), nil)
	require.NoError(t, err)

	// Under the same name another tenant has nothing, and nothing of another's under its own.
	require.NoError(t, os.Rename(s.snapshotsOf("acme"), s.snapshotsOf("acme")+".moved"))
	require.NoError(t, os.MkdirAll(s.snapshotsOf("acme"), 0o700))
	full, err := canonical("secret:1")
	require.NoError(t, err)
	moved, err := os.ReadFile(filepath.Join(s.snapshotsOf("acme")+".moved", keyOf(full)))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(s.snapshotsOf("other"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(s.snapshotsOf("other"), keyOf(full)), moved, 0o600))
	offline, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.EnsureFor(offline, "other", "secret:1", nil)
	require.Error(t, err)
	_, err = s.EnsureFor(t.Context(), "other", host+"/x@"+taken.Digest, nil)
	require.True(t, fault.Is(err, fault.ReasonImageNotFound), "%v", err)

	// Who has the manifest in a registry of theirs, and not what it is of, gets nothing; who has all of it does.
	made := composed(t, s, base, tarOf(t, file("b", "secret")))
	digest, err := made.Digest()
	require.NoError(t, err)
	require.Equal(t, taken.Digest, digest.String())
	_, err = s.unpack(t.Context(), hollow{made}, nil)
	require.Error(t, err)
	_, err = s.unpackAs(t.Context(), hollow{made}, "other", nil)
	require.Error(t, err)
	img, err := s.unpack(t.Context(), made, nil)
	require.NoError(t, err)
	require.Equal(t, "secret", read(t, img, "b"))
}

// composed is the image of a snapshot that was not stored.
func composed(t *testing.T, s *Store, base Image, changes []byte) v1.Image {
	t.Helper()
	at := filepath.Join(t.TempDir(), "layer")
	w := of("acme", "secret:1", base, changes)
	_, err := s.layerOf(t.Context(), w, at)
	require.NoError(t, err)
	img, err := s.compose(t.Context(), w, at)
	require.NoError(t, err)
	return img
}

// hollow has an image's manifest and config, and layers of something else.
type hollow struct{ v1.Image }

func (h hollow) Layers() ([]v1.Layer, error) {
	other, err := mutate.Append(h.Image)
	if err != nil {
		return nil, err
	}
	all, err := other.Layers()
	if err != nil {
		return nil, err
	}
	return []v1.Layer{all[0], all[0]}, nil
}

func TestHostileChanges(t *testing.T) {
	head := func(change func(*tar.Header)) *entry {
		e := file("f", "")
		change(&e.h)
		return e
	}
	for what, e := range map[string]*entry{
		"a climb":                     file("../../etc/passwd", "x"),
		"a climb inside":              file("a/../../b", "x"),
		"the root itself":             dir("/"),
		"a device":                    head(func(h *tar.Header) { h.Typeflag, h.Devmajor = tar.TypeChar, 1 }),
		"a disk":                      head(func(h *tar.Header) { h.Typeflag, h.Devmajor = tar.TypeBlock, 8 }),
		"a negative owner":            head(func(h *tar.Header) { h.Uid = -1 }),
		"an owner over the ids":       head(func(h *tar.Header) { h.Gid = 70_000 }),
		"an opaque directory":         file(".wh..wh..opq", ""),
		"a whiteout of nothing":       file("a/.wh.", ""),
		"a whiteout of a climb":       file("a/.wh...", ""),
		"a whiteout with content":     file(".wh.a", "x"),
		"a directory that is gone":    dir(".wh.d"),
		"a file in what is gone":      file(".wh.d/f", ""),
		"a link out of the image":     hard("h", "../../etc/passwd"),
		"a link to itself":            hard("h", "h"),
		"a depth":                     file(strings.Repeat("d/", 200)+"f", ""),
		"more than there may be":      file("big", strings.Repeat("x", 5000)),
		"a size and nothing behind":   nil,
		"no tar":                      {content: "raw"},
		"a link to what is not there": hard("h", "none"),
	} {
		t.Run(what, func(t *testing.T) {
			base, s, err := ensure(t, Options{SnapshotBytes: 4096}, layerOf(t, file("a", "1")))
			require.NoError(t, err)
			var changes []byte
			switch {
			case e == nil:
				changes = tarOf(t, file("f", strings.Repeat("x", 3000)))[:2000]
			case e.content == "raw":
				changes = bytes.Repeat([]byte("no tar at all "), 200)
			default:
				changes = tarOf(t, e)
			}
			_, err = s.Snapshot(t.Context(), of("acme", "mine", base, changes), nil)
			require.Error(t, err)
			left, err := filepath.Glob(filepath.Join(s.o.Dir, "snapshots", ".work*"))
			require.NoError(t, err)
			require.Empty(t, left)
			all, err := s.List()
			require.NoError(t, err)
			require.Len(t, all, 1, "nothing is stored but the base")
		})
	}
}

func TestASparseGiantIsRefusedByItsSize(t *testing.T) {
	base, s, err := ensure(t, Options{}, layerOf(t, file("a", "1")))
	require.NoError(t, err)
	stopped := make(chan error, 1)
	w := of("acme", "mine", base, nil)
	w.Changes = func(ctx context.Context, out io.Writer) error {
		tw := tar.NewWriter(out)
		if err := tw.WriteHeader(&tar.Header{Name: "giant", Typeflag: tar.TypeReg, Size: 1 << 40}); err != nil {
			return err
		}
		zeros := make([]byte, 1<<16)
		for {
			if _, err := tw.Write(zeros); err != nil {
				stopped <- context.Cause(ctx)
				return err
			}
		}
	}
	_, err = s.Snapshot(t.Context(), w, nil)
	require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
	require.Contains(t, err.Error(), "giant")
	<-stopped
}

func TestSetIDsAndOddNamesAndTimesOfChangesAreMadePlain(t *testing.T) {
	base, s, err := ensure(t, Options{}, layerOf(t, file("a", "1")))
	require.NoError(t, err)
	odd := file("na\nme \xff.wh.x", "x")
	odd.h.Mode, odd.h.ModTime = 0o6755, time.Unix(-5, 0)
	sticky := dir("tmp")
	sticky.h.Mode = 0o3777
	pipe := &entry{tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600}, ""}
	made := composed(t, s, base, tarOf(t, odd, sticky, pipe))
	layers, err := made.Layers()
	require.NoError(t, err)
	content, err := layers[1].Uncompressed()
	require.NoError(t, err)
	tr := tar.NewReader(content)
	got := map[string]tar.Header{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		got[h.Name] = *h
	}
	require.EqualValues(t, 0o755, got["na\nme \xff.wh.x"].Mode)
	require.Zero(t, got["na\nme \xff.wh.x"].ModTime.Unix())
	require.EqualValues(t, 0o1777, got["tmp/"].Mode)
	require.EqualValues(t, tar.TypeFifo, got["pipe"].Typeflag)
}

func TestNamesAndNumbersOfSnapshots(t *testing.T) {
	base, s, err := ensure(t, Options{Snapshots: 2}, layerOf(t, file("a", "1")))
	require.NoError(t, err)
	take := func(ref string, content string) (Taken, error) {
		return s.Snapshot(t.Context(), of("acme", ref, base, tarOf(t, file("b", content))), nil)
	}
	for _, ref := range []string{"", "/abs", "..", "UPPER", "a b", "x@" + base.Digest, "test/image:v1"} {
		_, err := take(ref, "")
		require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%q: %v", ref, err)
	}
	first, err := take("one", "1")
	require.NoError(t, err)
	_, err = take("two", "2")
	require.NoError(t, err)
	_, err = take("three", "3")
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	_, err = s.Snapshot(t.Context(), of("other", "three", base, tarOf(t)), nil)
	require.NoError(t, err, "each tenant has its own")
	_, known := s.ByDigest(first.Digest)
	require.True(t, known)

	// One that another took the name of goes, unless a sandbox is made from it.
	w := of("acme", "one:latest", base, tarOf(t, file("b", "4")))
	w.Used = func(digest string) bool { return digest == first.Digest }
	_, err = s.Snapshot(t.Context(), w, nil)
	require.NoError(t, err)
	_, known = s.ByDigest(first.Digest)
	require.True(t, known)
	s.Sweep(func(string) bool { return false })
	_, known = s.ByDigest(first.Digest)
	require.False(t, known)
	_, known = s.ByDigest(base.Digest)
	require.True(t, known, "what is nobody's snapshot is not touched")
	img, err := s.EnsureFor(t.Context(), "acme", "one", nil)
	require.NoError(t, err)
	require.Equal(t, "4", read(t, img, "b"))
}

func TestARegistryThatDoesNotTakeASnapshotLeavesNone(t *testing.T) {
	base, s, err := ensure(t, Options{}, layerOf(t, file("a", "1")))
	require.NoError(t, err)
	_, err = s.Snapshot(t.Context(), of("acme", "127.0.0.1:1/mine:1", base, tarOf(t)), nil)
	require.True(t, fault.Is(err, fault.ReasonImagePullFailed), "%v", err)
	require.Contains(t, err.Error(), "not pushed")
	require.Positive(t, fault.From(err).RetryAfter)
	kept, err := os.ReadDir(s.snapshotsOf("acme"))
	require.NoError(t, err)
	require.Empty(t, kept)

	closed, err := Open(Options{Dir: s.o.Dir, Sources: s.o.Sources})
	require.NoError(t, err)
	_, err = closed.Snapshot(t.Context(), of("acme", "127.0.0.1:1/mine:1", base, tarOf(t)), nil)
	require.ErrorContains(t, err, "private address", "a tenant's name for an image does not reach this host's network")
	require.Zero(t, fault.From(err).RetryAfter)
}
