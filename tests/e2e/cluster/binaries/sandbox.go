package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
)

// SandboxImage returns a tar file with the default image of sandboxes, as the lifecycle service builds it; written now where the cache has none.
func (b Builder) SandboxImage(ctx context.Context) (string, error) {
	b, err := b.withDefaults()
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob(filepath.Join(b.Source, "services/lifecycle/internal/debian/*.go"))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		h.Write(text)
	}
	dir, err := b.made(ctx, "image-"+hex.EncodeToString(h.Sum(nil))[:12], func(dir string) error {
		return b.run(ctx, group{}, filepath.Join(b.Source, "services/lifecycle"), "sandbox image", 0,
			"run", "./cmd/sandbox-image", "--cache", b.Cache, filepath.Join(dir, "image.tar"))
	})
	return filepath.Join(dir, "image.tar"), err
}
