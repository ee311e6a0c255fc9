package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// Labels of a snapshot's config.
const (
	LabelSandbox  = "dev.sandtrail.snapshot.sandbox"
	LabelSequence = "dev.sandtrail.snapshot.sequence"
)

// Snapshot is an image to be made: of one layer with all of Base, and one with what a sandbox has changed.
type Snapshot struct {
	// Tenant alone can use what is stored of it.
	Tenant string
	// Ref is its name. With a registry's host in it, it is pushed there too.
	Ref string
	// Sandbox, and Sequence in the log, that it is of; At is the time that the image gives.
	Sandbox  string
	Sequence uint64
	At       time.Time
	// Base was the sandbox's image, BaseRef what it was called.
	Base    Image
	BaseRef string
	// Changes writes the tar of what was changed. Nothing is taken for granted of it.
	Changes func(ctx context.Context, out io.Writer) error
	// Used reports whether a sandbox needs an image, by its digest.
	Used func(digest string) bool
}

// Taken is a snapshot that was made. Bytes and Files are those of the layer of changes, before it is compressed.
type Taken struct {
	Digest       string
	Bytes, Files int64
	Pushed       bool
}

// CheckSnapshotRef refuses what cannot be the name of a snapshot. remote: it names a registry, that is, it begins with a host.
func CheckSnapshotRef(ref string) (canonicalRef string, remote bool, err error) {
	full, err := canonical(ref)
	if err != nil {
		return "", false, err
	}
	if _, err := name.NewTag(strings.TrimSpace(ref)); err != nil {
		return "", false, fault.Newf(fault.InvalidArgument, fault.ReasonImageInvalid, "%.200q is no name for a snapshot: write repository:tag or registry/repository:tag, without a digest", ref)
	}
	host, _, found := strings.Cut(strings.TrimSpace(ref), "/")
	return full, found && (host == "localhost" || strings.ContainsAny(host, ".:")), nil
}

// owned is what snapshots/<tenant>/<key of the reference> holds.
type owned struct {
	pointer
	Tenant   string    `json:"tenant"`
	Sandbox  string    `json:"sandbox"`
	Sequence uint64    `json:"sequence"`
	At       time.Time `json:"at"`
}

func (s *Store) snapshotsOf(tenant string) string {
	return filepath.Join(s.o.Dir, "snapshots", keyOf(tenant))
}

// EnsureFor is Ensure for a sandbox of a tenant: what the tenant has made itself under this name comes first.
func (s *Store) EnsureFor(ctx context.Context, tenant, ref string, p prepare.Progress) (Image, error) {
	full, err := canonical(ref)
	if err != nil {
		return Image{}, err
	}
	var to owned
	if readJSON(filepath.Join(s.snapshotsOf(tenant), keyOf(full)), &to) == nil && to.Tenant == tenant {
		if img, ok := s.ByDigest(to.Digest); ok {
			return img, nil
		}
	}
	return s.Ensure(ctx, ref, p)
}

// Snapshot makes and stores the image, in place of an earlier one of the tenant of the same name, and pushes it where its name says so. Killed at
// any step it leaves the one before as it was, and done again it finds nothing in its way. One snapshot of a sandbox is made at a time.
//
// Reasons: image_invalid, quota, disk_full, image_pull_failed where a registry does not take it (with RetryAfter where it may the next time), and
// those of Changes.
func (s *Store) Snapshot(ctx context.Context, w Snapshot, p prepare.Progress) (Taken, error) {
	full, push, err := CheckSnapshotRef(w.Ref)
	if err != nil {
		return Taken{}, err
	}
	if _, ok := s.source(full); ok {
		return Taken{}, fault.Newf(fault.FailedPrecondition, fault.ReasonImageInvalid, "%.200q is the name of an image of this worker; take another", w.Ref)
	}
	release, err := prepare.Lock(ctx, filepath.Join(s.o.Dir, "locks", keyOf("snapshots/"+w.Tenant)))
	if err != nil {
		return Taken{}, fault.New(fault.Unavailable, fault.ReasonImagePullFailed, "another snapshot of this tenant is being made").WithRetry(5 * time.Second).Because(err)
	}
	defer release()
	if err := s.roomFor(w.Tenant, full); err != nil {
		return Taken{}, err
	}
	taken, err := s.take(ctx, w, full, push, p)
	if err != nil {
		var known *fault.Error
		if errors.As(err, &known) {
			return Taken{}, err
		}
		return Taken{}, classify(w.Ref, err)
	}
	s.Sweep(w.Used)
	return taken, nil
}

// reserveBytes of the disk stay free: a snapshot lies there twice while it is made.
const reserveBytes = 256 << 20

func (s *Store) roomFor(tenant, full string) error {
	entries, err := os.ReadDir(s.snapshotsOf(tenant))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return storeFault(err)
	}
	key, others := keyOf(full), 0
	for _, e := range entries {
		if e.Name() != key {
			others++
		}
	}
	if others >= s.o.Snapshots {
		return fault.Newf(fault.ResourceExhausted, fault.ReasonQuota,
			"the tenant has %d snapshots on this worker, as many as it may: take this one under the name of one of them, which it replaces", s.o.Snapshots)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.o.Dir, &st); err != nil {
		return storeFault(err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < reserveBytes { //nolint:gosec // not negative
		return storeFault(unix.ENOSPC)
	}
	return nil
}

func (s *Store) take(ctx context.Context, w Snapshot, full string, push bool, p prepare.Progress) (Taken, error) {
	// Named by its tenant, whose lock is held: what was left by one that was killed is overwritten.
	work := filepath.Join(s.o.Dir, "snapshots", ".work-"+keyOf(w.Tenant))
	if err := os.MkdirAll(s.snapshotsOf(w.Tenant), 0o700); err != nil {
		return Taken{}, err
	}
	defer os.Remove(work)
	n, err := s.layerOf(ctx, w, work)
	if err != nil {
		return Taken{}, err
	}
	made, err := s.compose(ctx, w, work)
	if err != nil {
		return Taken{}, err
	}
	digest, err := made.Digest()
	if err != nil {
		return Taken{}, err
	}
	if push {
		p.Report("image: push", 0, 0, w.Ref)
		if err := s.push(ctx, w.Ref, made); err != nil {
			return Taken{}, err
		}
	}
	if _, err := s.unpackAs(ctx, made, w.Tenant, p); err != nil {
		return Taken{}, err
	}
	err = writeJSON(filepath.Join(s.snapshotsOf(w.Tenant), keyOf(full)), owned{
		pointer: pointer{Ref: full, Digest: digest.String()}, Tenant: w.Tenant, Sandbox: w.Sandbox, Sequence: w.Sequence, At: w.At,
	})
	return Taken{Digest: digest.String(), Bytes: n.bytes, Files: n.files, Pushed: push}, err
}

// layerOf writes the changes to a file, as a layer. Whoever writes them is told to stop as soon as they are refused.
func (s *Store) layerOf(ctx context.Context, w Snapshot, file string) (n counts, err error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, pipe := io.Pipe()
	told := make(chan error, 1)
	go func() {
		err := w.Changes(ctx, pipe)
		pipe.CloseWithError(err) // nil is the end
		told <- err
	}()
	n, err = relayer(ctx, out, r, counts{bytes: s.o.SnapshotBytes, files: s.o.MaxFiles})
	if err != nil {
		r.CloseWithError(err)
		cancel()
	}
	if said := <-told; said != nil && (err == nil || errors.Is(err, said)) {
		err = said
	}
	return n, err
}

// compose makes the image of two layers. What it says of itself is the same for the same changes at the same sequence.
func (s *Store) compose(ctx context.Context, w Snapshot, file string) (v1.Image, error) {
	options := []tarball.LayerOption{tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer)}
	base, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, out := io.Pipe()
		go func() { out.CloseWithError(flatten(ctx, out, w.Base, os.Geteuid() == 0)) }()
		return r, nil
	}, options...)
	if err != nil {
		return nil, err
	}
	changed, err := tarball.LayerFromFile(file, options...)
	if err != nil {
		return nil, err
	}
	at := v1.Time{Time: w.At.UTC().Truncate(time.Second)}
	config := &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: at,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env: w.Base.Env, WorkingDir: w.Base.WorkingDir, User: w.Base.User, Entrypoint: w.Base.Entrypoint, Cmd: w.Base.Cmd,
			Labels: map[string]string{
				LabelSandbox: w.Sandbox, LabelSequence: strconv.FormatUint(w.Sequence, 10),
				"org.opencontainers.image.base.name": w.BaseRef, "org.opencontainers.image.base.digest": w.Base.Digest,
			},
		},
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Append(img,
		mutate.Addendum{Layer: base, MediaType: types.OCILayer, History: v1.History{Created: at, CreatedBy: "sandtrail: all of " + cmp.Or(w.BaseRef, w.Base.Digest)}},
		mutate.Addendum{Layer: changed, MediaType: types.OCILayer, History: v1.History{Created: at, CreatedBy: fmt.Sprintf("sandtrail: changes of sandbox %s at %d", w.Sandbox, w.Sequence)}},
	)
}

// push sends the image to its registry, to which nobody logs in.
func (s *Store) push(ctx context.Context, ref string, img v1.Image) error {
	tag, err := name.NewTag(strings.TrimSpace(ref))
	if err != nil {
		return err
	}
	err = remote.Write(tag, img, remote.WithContext(ctx), remote.WithTransport(s.pull.transport),
		remote.WithRetryBackoff(remote.Backoff{Duration: s.o.pause, Factor: 2, Jitter: 0.3, Steps: 3}))
	if err != nil {
		f := classify(ref, err)
		f.Message = "the snapshot was not pushed: " + f.Message
		return f
	}
	return nil
}

// possess reads all of an image that is unpacked here and belongs to one tenant: that somebody knows its digest, or a registry its manifest, is
// no proof that they have what is in it.
func possess(ctx context.Context, src v1.Image, most int64) error {
	layers, err := src.Layers()
	if err != nil {
		return err
	}
	config, err := src.ConfigFile()
	if err != nil || len(config.RootFS.DiffIDs) != len(layers) || len(layers) > maxLayers {
		return invalid("its config cannot be read")
	}
	// Reading it as an unpacking would, into nothing, compares the digests.
	u := &unpacker{bytesLeft: most}
	for i, layer := range layers {
		if err := u.read(ctx, layer, config.RootFS.DiffIDs[i], func(*tar.Header, io.Reader) error { return nil }); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	return nil
}

// sameConfig compares what an image of another source says of itself with its manifest.
func sameConfig(src v1.Image) error {
	raw, err := src.RawManifest()
	if err != nil {
		return err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	if said, err := src.Digest(); err != nil || said != digest {
		return errors.Join(err, invalid("its manifest does not have its digest"))
	}
	_, err = describe(src)
	return err
}

// Sweep removes snapshots that no name leads to any more and no sandbox needs, and tells of failures in the log alone: the next one does it.
func (s *Store) Sweep(used func(digest string) bool) {
	named := map[string]bool{}
	for _, pattern := range []string{"snapshots/*/*", "refs/*"} {
		pointers, err := filepath.Glob(filepath.Join(s.o.Dir, pattern))
		if err != nil {
			return
		}
		for _, path := range pointers {
			var to pointer
			if err := readJSON(path, &to); err != nil {
				return // what it leads to is not known
			}
			named[to.Digest] = true
		}
	}
	all, err := s.List()
	if err != nil {
		s.o.Log.Warn("snapshots that nobody needs were not looked for", "error", err)
		return
	}
	for _, img := range all {
		if img.Owner == "" || named[img.Digest] || used == nil || used(img.Digest) {
			continue
		}
		if err := s.Remove(img.Digest); err != nil {
			s.o.Log.Warn("a snapshot that nobody needs was not removed", "digest", img.Digest, "error", err)
		}
	}
}
