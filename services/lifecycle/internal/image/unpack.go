package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// invalidError is a fault of the image itself: why is safe to show.
type invalidError struct{ why string }

func (e *invalidError) Error() string { return "invalid image: " + e.why }

func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

const maxLayers = 256

// unpack writes the image's layers to a directory of their own and moves it to its place when all of it is there. An image that
// is unpacked already is only read for its digest. Callers hold the lock of a reference; two references to one image are kept
// apart by the lock of the digest.
func (s *Store) unpack(ctx context.Context, src v1.Image, p prepare.Progress) (Image, error) {
	return s.unpackAs(ctx, src, "", p)
}

// unpackAs is unpack for an image that belongs to a tenant, or to nobody. One that is here and belongs to a tenant already is anybody else's
// only once they have shown all of it.
func (s *Store) unpackAs(ctx context.Context, src v1.Image, owner string, p prepare.Progress) (Image, error) {
	digest, err := src.Digest()
	if err != nil {
		return Image{}, err
	}
	release, err := prepare.Lock(ctx, filepath.Join(s.o.Dir, "locks", digest.Hex))
	if err != nil {
		return Image{}, err
	}
	defer release()
	if img, ok := s.ByDigest(digest.String()); ok {
		if img.Owner != "" && img.Owner != owner {
			err = errors.Join(sameConfig(src), possess(ctx, src, s.o.MaxBytes))
		}
		return img, err
	}
	img, err := describe(src)
	if err != nil {
		return Image{}, err
	}
	img.Owner = owner
	img.Digest, img.Rootfs, img.Base = digest.String(), s.rootfsPath(digest.Hex), s.o.HostIDBase
	partial := img.Rootfs + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.RemoveAll(img.Rootfs)); err != nil {
		return Image{}, err
	}
	if err := s.layers(ctx, src, partial, &img, p); err != nil {
		return Image{}, errors.Join(err, os.RemoveAll(partial))
	}
	if err := os.Rename(partial, img.Rootfs); err != nil {
		return Image{}, err
	}
	// The meta file is what makes the image exist: it is written when the contents are on disk.
	return img, writeJSON(s.metaPath(digest.Hex), img)
}

// describe reads an image's manifest and config. What they say comes from whoever made the image, their sizes too.
func describe(src v1.Image) (Image, error) {
	told, err := src.RawManifest()
	if err != nil {
		return Image{}, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(told))
	if err != nil {
		return Image{}, invalid("what the registry has under this name is no image")
	}
	if t := manifest.Config.MediaType; t != "" && !t.IsConfig() {
		return Image{}, invalid("it is no container image but %.100q", t)
	}
	if n := manifest.Config.Size; n <= 0 || n > maxConfig {
		return Image{}, invalid("its config has %d bytes; between 1 and %d are possible", n, maxConfig)
	}
	raw, err := src.RawConfigFile()
	if err != nil {
		return Image{}, err
	}
	if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != manifest.Config.Digest.Hex {
		return Image{}, invalid("its config does not have the digest that its manifest says")
	}
	file, err := src.ConfigFile()
	if err != nil {
		return Image{}, invalid("its config cannot be read")
	}
	if file.OS != "" && file.OS != "linux" || file.Architecture != "" && file.Architecture != runtime.GOARCH {
		return Image{}, invalid("it is for %.40q, not for linux/%s", file.OS+"/"+file.Architecture, runtime.GOARCH)
	}
	c := file.Config
	return Image{Env: c.Env, WorkingDir: c.WorkingDir, User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd}, nil
}

func (s *Store) layers(ctx context.Context, src v1.Image, dir string, img *Image, p prepare.Progress) error {
	layers, err := src.Layers()
	if err != nil {
		return err
	}
	if len(layers) == 0 || len(layers) > maxLayers {
		return invalid("it has %d layers; between 1 and %d are possible", len(layers), maxLayers)
	}
	config, err := src.ConfigFile()
	if err != nil {
		return invalid("its config cannot be read")
	}
	if len(config.RootFS.DiffIDs) != len(layers) {
		return invalid("it has %d layers and its config names %d", len(layers), len(config.RootFS.DiffIDs))
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, base: s.o.HostIDBase, own: os.Geteuid() == 0, bytesLeft: s.o.MaxBytes, filesLeft: s.o.MaxFiles}
	if err := u.lchown(".", 0, 0); err != nil {
		return err
	}
	for i, layer := range layers {
		p.Report("image: unpack", int64(i), int64(len(layers)), img.Digest)
		if err := u.layer(ctx, layer, config.RootFS.DiffIDs[i]); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	p.Report("image: unpack", int64(len(layers)), int64(len(layers)), img.Digest)
	img.Bytes, img.Files = s.o.MaxBytes-u.bytesLeft, s.o.MaxFiles-u.filesLeft
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// layer unpacks one layer. What it read is compared with the digest that the config names, whatever the source checks itself:
// a source may take the digest that it says a layer has from the layer, at the cost of reading it twice.
func (u *unpacker) layer(ctx context.Context, layer v1.Layer, want v1.Hash) error {
	u.fresh = map[string]bool{}
	return u.read(ctx, layer, want, u.entry)
}

func (u *unpacker) read(ctx context.Context, layer v1.Layer, want v1.Hash, each func(*tar.Header, io.Reader) error) (err error) {
	content, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	r := &counted{ctx: ctx, r: content, sum: sha256.New(), left: &u.bytesLeft}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return readFault(err)
		}
		if err := each(h, tr); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return readFault(err)
	}
	if got := hex.EncodeToString(r.sum.Sum(nil)); got != want.Hex {
		return fmt.Errorf("its content has another digest than the image says: %s", got)
	}
	return nil
}

func readFault(err error) error {
	if errors.Is(err, tar.ErrHeader) {
		return invalid("a layer is no tar archive")
	}
	return err
}

// counted bounds what is read of all layers together, hashes it, and ends with its context.
type counted struct {
	ctx  context.Context
	r    io.Reader
	sum  hash.Hash
	left *int64
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	if *c.left -= int64(n); *c.left < 0 {
		return n, invalid("it is larger unpacked than this worker allows")
	}
	return n, err
}

// cleanName is the path of an entry below the root. A leading slash is common and harmless; a climb is refused.
func cleanName(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", invalid("a layer names the path %.200q, which climbs", name)
		}
	}
	clean := strings.TrimPrefix(filepath.Clean("/"+name), "/")
	if len(clean) > 4096 || strings.ContainsRune(clean, 0) {
		return "", invalid("a layer holds an impossible path")
	}
	return clean, nil
}
