// Package image keeps unpacked images, each shared by all sandboxes that run it. An image reference and every byte of an image
// come from tenants: nothing in them may reach outside of the store, or use more of the host than the bounds say.
package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/singleflight"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// Image is an unpacked image.
type Image struct {
	// Digest is that of the manifest: sha256:….
	Digest string `json:"digest"`
	// Rootfs is the absolute path of the unpacked root file system. It is shared: never written to.
	Rootfs string `json:"-"`
	// Env, WorkingDir, User, Entrypoint and Cmd are from the image's config.
	Env        []string `json:"env"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Bytes and Files count what was unpacked.
	Bytes int64 `json:"bytes"`
	Files int64 `json:"files"`
	// Base is the host id that the guest's id 0 owns files as.
	Base uint32 `json:"base"`
	// Owner is the tenant whose snapshot it is; empty: it is anybody's.
	Owner string `json:"owner,omitempty"`
}

// Source gives an image without a registry.
type Source func(ctx context.Context, p prepare.Progress) (v1.Image, error)

// Options of a Store. Dir is required.
type Options struct {
	// Dir is STATE/images.
	Dir string
	// HostIDBase is added to every owner in an image, so that they belong to the mapped ids of a guest. 0 without root.
	HostIDBase uint32
	// Sources are images that are not pulled, by reference.
	Sources map[string]Source
	// MaxBytes and MaxFiles bound one unpacked image, all layers together and before whiteouts; default 8 GiB and 500,000.
	MaxBytes, MaxFiles int64
	// SnapshotBytes bounds what a snapshot says was changed; default 2 GiB. Snapshots is how many a tenant may have here by name; default 20.
	SnapshotBytes int64
	Snapshots     int
	// PullTimeout bounds one Ensure; default 10 minutes.
	PullTimeout time.Duration
	// PrivateRegistries allows registries at private, loopback and link-local addresses. Off, a tenant's reference cannot make
	// this host connect to its own network.
	PrivateRegistries bool
	Log               *slog.Logger

	pause time.Duration // between attempts; tests shorten it
}

// Store keeps images below one directory. It may be used by many goroutines, and by more than one process.
type Store struct {
	o       Options
	pull    *puller
	flights singleflight.Group
	mu      sync.Mutex
	known   map[string]Image // by reference
}

// Open makes the directories. What interrupted unpacks left is removed by the next Ensure of that image.
func Open(o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 8 << 30
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = 500_000
	}
	if o.SnapshotBytes == 0 {
		o.SnapshotBytes = 2 << 30
	}
	if o.Snapshots == 0 {
		o.Snapshots = 20
	}
	if o.PullTimeout == 0 {
		o.PullTimeout = 10 * time.Minute
	}
	if o.pause == 0 {
		o.pause = pullPause
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	o.Dir = dir
	for _, sub := range []string{"", "rootfs", "refs", "locks", "meta", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("open images: %w", err)
		}
	}
	return &Store{o: o, pull: newPuller(o.PrivateRegistries, o.pause), known: map[string]Image{}}, nil
}

// Ensure returns the image that ref names, and gets and unpacks it first where it is not stored. A pulled image is used for
// ever, also where a registry has another one under the same tag by now: name a digest to be sure. An image of Sources is looked
// at once in each process, and the stored one is used where its source fails. At the same time one
// reference is got once, whoever asks; a caller whose ctx ends stops waiting, and the work goes on for the others.
//
// Reasons: image_invalid, image_not_found, image_pull_failed (with RetryAfter where it may help), disk_full.
func (s *Store) Ensure(ctx context.Context, ref string, p prepare.Progress) (Image, error) {
	ref, err := canonical(ref)
	if err != nil {
		return Image{}, err
	}
	if img, ok := s.stored(ref); ok {
		return img, nil
	}
	done := s.flights.DoChan(ref, func() (any, error) {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.PullTimeout)
		defer cancel()
		return s.ensure(work, ref, p)
	})
	select {
	case <-ctx.Done():
		return Image{}, fault.New(fault.DeadlineExceeded, fault.ReasonStartDeadline, "the image was not there in time; it is still being fetched, so a later create may find it").Because(ctx.Err())
	case r := <-done:
		if r.Err != nil {
			return Image{}, r.Err
		}
		return r.Val.(Image), nil
	}
}

// canonical is the full form of a reference, so that one image has one name here.
func canonical(ref string) (string, error) {
	parsed, err := name.ParseReference(strings.TrimSpace(ref))
	if err != nil || len(ref) > 512 || strings.HasPrefix(ref, "/") || climbs(parsed) {
		return "", fault.Newf(fault.InvalidArgument, fault.ReasonImageInvalid, "%.200q is no image reference; write registry/repository:tag or registry/repository@sha256:digest", ref)
	}
	return parsed.Name(), nil
}

// climbs: a registry or repository that is a way in a file system and not a name.
func climbs(ref name.Reference) bool {
	return slices.ContainsFunc(strings.Split(ref.Context().Name(), "/"), func(part string) bool { return part == "." || part == ".." })
}

func (s *Store) ensure(ctx context.Context, ref string, p prepare.Progress) (Image, error) {
	release, err := prepare.Lock(ctx, filepath.Join(s.o.Dir, "locks", keyOf(ref)))
	if err != nil {
		return Image{}, fault.New(fault.Unavailable, fault.ReasonImagePullFailed, "another process is still fetching this image").WithRetry(5 * time.Second).Because(err)
	}
	defer release()
	if img, ok := s.stored(ref); ok {
		return img, nil
	}
	begin := time.Now()
	img, err := s.attempts(ctx, ref, p)
	if err != nil {
		return Image{}, err
	}
	if err := s.remember(ref, img); err != nil {
		return Image{}, storeFault(err)
	}
	s.o.Log.Info("stored an image", "image", ref, "digest", img.Digest, "bytes", img.Bytes, "files", img.Files, "took", time.Since(begin).Round(time.Millisecond))
	return img, nil
}

// Import unpacks the image at path, an OCI layout directory or a tar file made by `docker save`, under ref. It is for the
// operator: a tenant never names a path.
func (s *Store) Import(ctx context.Context, ref, path string, p prepare.Progress) (Image, error) {
	ref, err := canonical(ref)
	if err != nil {
		return Image{}, err
	}
	src, err := FromPath(path)(ctx, p)
	if err != nil {
		return Image{}, fault.Newf(fault.InvalidArgument, fault.ReasonImageInvalid, "there is no image at %s", path).Because(err)
	}
	release, err := prepare.Lock(ctx, filepath.Join(s.o.Dir, "locks", keyOf(ref)))
	if err != nil {
		return Image{}, err
	}
	defer release()
	img, err := s.unpack(ctx, src, p)
	if err != nil {
		return Image{}, classify(ref, err)
	}
	if err := s.remember(ref, img); err != nil {
		return Image{}, storeFault(err)
	}
	return img, nil
}

func keyOf(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return hex.EncodeToString(sum[:])
}

// pointer is what refs/<key> holds.
type pointer struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
}

func (s *Store) stored(ref string) (Image, bool) {
	s.mu.Lock()
	img, ok := s.known[ref]
	s.mu.Unlock()
	if ok {
		if _, err := os.Stat(img.Rootfs); err == nil {
			return img, true
		}
	}
	if _, ok := s.source(ref); ok {
		// A newer version of this program may have another image: its source is asked once in each process.
		return Image{}, false
	}
	img, ok = s.pointed(ref)
	if ok {
		s.mu.Lock()
		s.known[ref] = img
		s.mu.Unlock()
	}
	return img, ok
}

// pointed is what a reference named when it was last got.
func (s *Store) pointed(ref string) (Image, bool) {
	var to pointer
	if err := readJSON(filepath.Join(s.o.Dir, "refs", keyOf(ref)), &to); err != nil {
		return Image{}, false
	}
	return s.ByDigest(to.Digest)
}

// ByDigest finds an unpacked image by the digest of its manifest. One that was unpacked for other owners does not count.
func (s *Store) ByDigest(digest string) (Image, bool) {
	var img Image
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || strings.ContainsAny(hex, "/.") || readJSON(s.metaPath(hex), &img) != nil || img.Base != s.o.HostIDBase {
		return Image{}, false
	}
	img.Rootfs = s.rootfsPath(hex)
	_, err := os.Stat(img.Rootfs)
	return img, err == nil
}

func (s *Store) metaPath(hex string) string   { return filepath.Join(s.o.Dir, "meta", hex+".json") }
func (s *Store) rootfsPath(hex string) string { return filepath.Join(s.o.Dir, "rootfs", hex) }

func (s *Store) remember(ref string, img Image) error {
	if err := writeJSON(filepath.Join(s.o.Dir, "refs", keyOf(ref)), pointer{Ref: ref, Digest: img.Digest}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[ref] = img
	return nil
}

// Stored is one image of the store.
type Stored struct {
	Image
	Refs     []string
	StoredAt time.Time
}

// List gives every unpacked image.
func (s *Store) List() ([]Stored, error) {
	refs := map[string][]string{}
	pointers, err := filepath.Glob(filepath.Join(s.o.Dir, "refs", "*"))
	if err != nil {
		return nil, storeFault(err)
	}
	for _, path := range pointers {
		var to pointer
		if readJSON(path, &to) == nil {
			refs[to.Digest] = append(refs[to.Digest], to.Ref)
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.o.Dir, "rootfs"))
	if err != nil {
		return nil, storeFault(err)
	}
	var all []Stored
	for _, e := range entries {
		img, ok := s.ByDigest("sha256:" + e.Name())
		if !ok {
			continue
		}
		at := Stored{Image: img, Refs: refs[img.Digest]}
		if info, err := os.Stat(s.metaPath(e.Name())); err == nil {
			at.StoredAt = info.ModTime()
		}
		all = append(all, at)
	}
	return all, nil
}

// Remove deletes an image and the references to it. The caller knows that no sandbox runs it. An unknown digest is no error.
func (s *Store) Remove(digest string) error {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "an image digest is sha256: and 64 hexadecimal digits")
	}
	s.mu.Lock()
	for ref, img := range s.known {
		if img.Digest == digest {
			delete(s.known, ref)
		}
	}
	s.mu.Unlock()
	pointers, err := filepath.Glob(filepath.Join(s.o.Dir, "refs", "*"))
	if err != nil {
		return storeFault(err)
	}
	for _, path := range pointers {
		var to pointer
		if readJSON(path, &to) == nil && to.Digest == digest {
			err = errors.Join(err, os.Remove(path))
		}
	}
	// Without its meta file an image does not exist, so a removal that is interrupted leaves none that is half there.
	if e := os.Remove(s.metaPath(hex)); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, os.RemoveAll(s.rootfsPath(hex))); err != nil {
		return storeFault(err)
	}
	return nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// writeJSON replaces the file at once.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(filepath.Dir(path)), ".new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
