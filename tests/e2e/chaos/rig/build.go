package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds every binary and returns their directory. SANDTRAIL_BIN names a directory of binaries that are there already.
func Build(ctx context.Context) (string, error) {
	if dir := os.Getenv("SANDTRAIL_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := sourceRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "make", "-s", "build")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return filepath.Join(root, "bin"), nil
}

func sourceRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("no go.work above this directory: run it inside the source tree, or name the binaries by SANDTRAIL_BIN")
		}
		dir = filepath.Dir(dir)
	}
}
