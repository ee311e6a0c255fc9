package prepare

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoToolbox: there is neither a toolbox binary nor a source tree to build it from.
var ErrNoToolbox = errors.New("the toolbox binary was not found: put it beside this program or name its path in the configuration")

// Toolbox returns the path of the static toolbox binary: the configured one, the one beside this program, or one built from the
// source tree into the cache under the digest of its sources. Two processes at once build it once.
func Toolbox(ctx context.Context, o Options) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	if o.Toolbox != "" {
		if err := checkStatic(o.Toolbox); err != nil {
			return "", fmt.Errorf("the configured toolbox: %w", err)
		}
		return filepath.Abs(o.Toolbox)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "toolbox")
		if isProgram(beside) && checkStatic(beside) == nil {
			return beside, nil
		}
	}
	source, ok := findSource(o.Source)
	if !ok {
		return "", ErrNoToolbox
	}
	key, err := sourceKey(source)
	if err != nil {
		return "", fmt.Errorf("read the toolbox sources: %w", err)
	}
	return buildToolbox(ctx, o, source, filepath.Join(o.CacheDir, "bin", "toolbox-"+key))
}

func buildToolbox(ctx context.Context, o Options, source, to string) (string, error) {
	if isProgram(to) {
		return to, nil
	}
	release, err := Lock(ctx, filepath.Join(o.CacheDir, "bin", "toolbox.lock"))
	if err != nil {
		return "", err
	}
	defer release()
	if isProgram(to) {
		return to, nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), "build-")
	if err != nil {
		return "", fmt.Errorf("build the toolbox: %w", err)
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "toolbox")
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-ldflags", "-s -w", "-o", out, "./cmd/toolbox")
	cmd.Dir = filepath.Join(source, "toolbox")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=", "GOARCH=")
	if err := runBuild(cmd, "toolbox", 0, o.Progress); err != nil {
		return "", fmt.Errorf("build the toolbox: %w", err)
	}
	return to, install(out, to)
}

// findSource goes up from the given directory, else from the working directory and the executable, to the top of a source tree.
func findSource(given string) (string, bool) {
	starts := []string{given}
	if given == "" {
		starts = nil
		if dir, err := os.Getwd(); err == nil {
			starts = append(starts, dir)
		}
		if self, err := os.Executable(); err == nil {
			starts = append(starts, filepath.Dir(self))
		}
	}
	for _, dir := range starts {
		for {
			if exists(filepath.Join(dir, "toolbox", "cmd", "toolbox")) && exists(filepath.Join(dir, "proto", "go.mod")) {
				return dir, true
			}
			up := filepath.Dir(dir)
			if up == dir {
				break
			}
			dir = up
		}
	}
	return "", false
}

// sourceKey is a digest over all that the toolbox is built from: names and contents, tests apart.
func sourceKey(source string) (string, error) {
	sum := sha256.New()
	for _, dir := range []string{"toolbox", filepath.Join("proto", "gen", "go"), filepath.Join("proto", "go.mod")} {
		err := filepath.WalkDir(filepath.Join(source, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !builds(d.Name()) {
				return err
			}
			return hashFile(sum, source, path)
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func builds(name string) bool {
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") || name == "go.mod" || name == "go.sum"
}

func hashFile(sum io.Writer, source, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	name, err := filepath.Rel(source, path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(sum, "%s\x00%d\x00", name, info.Size())
	_, err = io.Copy(sum, f)
	return err
}
