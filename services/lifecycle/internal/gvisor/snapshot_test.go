package gvisor

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// newSnapshotHost has images of its own: what tests make of them goes with the test.
func newSnapshotHost(t *testing.T, change ...func(*image.Options)) *host {
	t.Helper()
	state := t.TempDir()
	o := image.Options{Dir: filepath.Join(state, "images"), HostIDBase: idBase, Sources: map[string]image.Source{
		debian.Reference: func(ctx context.Context, p prepare.Progress) (v1.Image, error) {
			return debian.Build(ctx, debian.Options{Progress: p})
		},
	}}
	for _, c := range change {
		c(&o)
	}
	return newHost(t, state, func(d *Options) {
		store, err := image.Open(o)
		require.NoError(t, err)
		d.Images = store
	})
}

// unhurried is bounded for what writes a whole image to the disk.
func unhurried(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (h *host) sh(t *testing.T, id, command string) string {
	t.Helper()
	out, exit, err := h.exec(bounded(t), id, command)
	require.NoError(t, err)
	require.Zero(t, exit, "%s: %s", command, out)
	return out
}

func snapshotOf(s runtime.Spec, name string, sequence uint64) runtime.SnapshotSpec {
	return runtime.SnapshotSpec{ID: s.ID, Tenant: s.Tenant, Image: name, BaseImage: s.Image, MountPath: s.MountPath, Sequence: sequence, At: time.Unix(1_700_000_000, 0)}
}

func TestASnapshotHasWhatTheSandboxChangedAndIsItsTenantsAlone(t *testing.T) {
	h := newSnapshotHost(t)
	s := spec()
	s.Tenant = "acme"
	create(t, h, s)
	first, err := h.Snapshot(unhurried(t), snapshotOf(s, "fresh", 5))
	require.NoError(t, err)
	t.Logf("nothing changed: %d bytes in %d entries", first.Bytes, first.Files)
	require.Less(t, first.Files, uint64(20), "only what was changed is in the layer")

	h.sh(t, s.ID, `mkdir -p /var/tmp/d/e && echo one > /var/tmp/d/e/f && ln /var/tmp/d/e/f /var/tmp/d/g && ln -s e/f /var/tmp/d/link &&
		mkfifo /var/tmp/d/pipe && touch -d @1000000000 /var/tmp/d/old && chmod 751 /var/tmp/d/old && printf x > "/var/tmp/d/new
line" && head -c 3000000 /dev/zero > /var/tmp/d/zeros && echo work > /workspace/w && echo tmp > /tmp/t && rm -rf /var/tmp/absent`)
	one, err := h.Snapshot(unhurried(t), snapshotOf(s, "mine:1", 7))
	require.NoError(t, err)
	again, err := h.Snapshot(unhurried(t), snapshotOf(s, "mine:1", 7))
	require.NoError(t, err)
	require.Equal(t, one, again, "the same changes are the same image")
	t.Logf("changed: %d bytes in %d entries", one.Bytes, one.Files)

	copied := spec()
	copied.Tenant, copied.Image = "acme", "mine:1"
	created, err := h.Create(unhurried(t), copied)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = h.Destroy(context.WithoutCancel(t.Context()), copied.ID) })
	require.Equal(t, one.Digest, created.ImageDigest)
	require.Equal(t, "one\none\ne/f\n1000000000 751\nx3000000\n", h.sh(t, copied.ID, `cd /var/tmp/d && cat e/f g && readlink link && stat -c '%Y %a' old && cat new* && stat -c %s zeros`))
	require.Equal(t, "2\n", h.sh(t, copied.ID, "stat -c %h /var/tmp/d/g"))
	require.Equal(t, "no\n", h.sh(t, copied.ID, "test -e /workspace/w -o -e /tmp/t && echo yes || echo no"))

	// A snapshot of what was made from one has both, and what is gone is gone.
	h.sh(t, copied.ID, "rm /var/tmp/d/e/f && echo two > /var/tmp/two")
	second, err := h.Snapshot(unhurried(t), snapshotOf(copied, "mine:2", 9))
	require.NoError(t, err)
	third := spec()
	third.Tenant, third.Image = "acme", "mine:2"
	created, err = h.Create(unhurried(t), third)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = h.Destroy(context.WithoutCancel(t.Context()), third.ID) })
	require.Equal(t, second.Digest, created.ImageDigest)
	require.Equal(t, "one\ntwo\nno\n", h.sh(t, third.ID, "cat /var/tmp/d/g /var/tmp/two; test -e /var/tmp/d/e/f && echo yes || echo no"))

	// The one before is gone once nothing is made from it and its name leads elsewhere.
	_, err = h.Snapshot(unhurried(t), snapshotOf(copied, "mine:1", 11))
	require.NoError(t, err)
	_, kept := h.o.Images.ByDigest(one.Digest)
	require.True(t, kept, "a sandbox is made from it")
	_, err = h.Destroy(bounded(t), copied.ID)
	require.NoError(t, err)
	_, err = h.Snapshot(unhurried(t), snapshotOf(third, "fresh", 13))
	require.NoError(t, err)
	_, kept = h.o.Images.ByDigest(one.Digest)
	require.False(t, kept)
	_, kept = h.o.Images.ByDigest(first.Digest)
	require.False(t, kept)
}

func TestASnapshotSaysWhyThereIsNone(t *testing.T) {
	h := newSnapshotHost(t, func(o *image.Options) { o.SnapshotBytes, o.Snapshots = 1<<20, 1 })
	s := spec()
	s.Tenant = "acme"
	create(t, h, s)
	_, err := h.Snapshot(unhurried(t), snapshotOf(s, debian.Reference, 1))
	require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
	h.sh(t, s.ID, "truncate -s 1T /var/tmp/sparse")
	_, err = h.Snapshot(unhurried(t), snapshotOf(s, "a", 1))
	require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
	require.Contains(t, err.Error(), "var/tmp/sparse")
	h.sh(t, s.ID, "rm /var/tmp/sparse; mkdir /var/tmp/closed; touch /var/tmp/closed/f; chmod 0 /var/tmp/closed")
	_, err = h.Snapshot(unhurried(t), snapshotOf(s, "a", 1))
	require.True(t, fault.Is(err, fault.ReasonStartFailed), "%v", err)
	require.Contains(t, err.Error(), "/var/tmp/closed")
	h.sh(t, s.ID, "chmod 700 /var/tmp/closed")
	_, err = h.Snapshot(unhurried(t), snapshotOf(s, "a", 1))
	require.NoError(t, err)
	_, err = h.Snapshot(unhurried(t), snapshotOf(s, "b", 1))
	require.Equal(t, fault.ResourceExhausted, fault.CodeOf(err), "%v", err)
	_, err = h.Snapshot(unhurried(t), snapshotOf(s, "a:latest", 2))
	require.NoError(t, err, "in place of another of the name")
	list, err := h.client(s.ID).List(bounded(t), nil)
	require.NoError(t, err)
	for _, e := range list.GetExecs() {
		require.NotEqual(t, "running", e.GetState(), "no helper is left")
	}
	_, err = h.Snapshot(unhurried(t), snapshotOf(runtime.Spec{ID: ids.New(), Tenant: "acme"}, "a", 1))
	require.True(t, fault.Is(err, fault.ReasonSandboxLost), "%v", err)
}
