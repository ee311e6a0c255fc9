// Package upgrade runs the previous version and this one side by side on one log: what a rolling upgrade, and a step back from
// one, go through.
package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Previous is the commit that this version must work beside: the last one of the version before. Moving it on is what releases a
// version.
const Previous = "d14defa3724267cbff90d3c5e042d4994dce9ceb"

// programs are those that a stack starts, by the package that each is built from.
var programs = map[string]string{
	"toolbox":             "./toolbox/cmd/toolbox",
	"sandtrail":           "./cmd/sandtrail",
	"sandtrail-gateway":   "./services/gateway/cmd/gateway",
	"sandtrail-lifecycle": "./services/lifecycle/cmd/lifecycle",
	"sandtrail-exec":      "./services/exec/cmd/exec",
	"sandtrail-usage":     "./services/usage/cmd/usage",
	"sandtrail-gc":        "./services/gc/cmd/gc",
}

// cutOff reports that a tree is no clone, or one without its history.
func cutOff(root string) bool {
	var shallow bytes.Buffer
	err := git(root, &shallow, "rev-parse", "--is-shallow-repository")
	return err != nil || strings.TrimSpace(shallow.String()) == "true"
}

// source unpacks the tree of the previous version, as git recorded it, into a directory.
func source(root, to string) error {
	if err := git(root, io.Discard, "cat-file", "-e", Previous+"^{commit}"); err != nil {
		return fmt.Errorf("the previous version is not in this clone: %w", err)
	}
	var tree bytes.Buffer
	if err := git(root, &tree, "archive", "--format=tar", Previous); err != nil {
		return err
	}
	unpack := exec.Command("tar", "-x", "-C", to)
	unpack.Stdin = &tree
	if out, err := unpack.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack the previous version: %w: %s", err, out)
	}
	return nil
}

// A checkout may belong to another user than the one that runs tests.
func git(root string, out io.Writer, args ...string) error {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// build makes every program of a source tree. What both versions have in common comes from Go's build cache.
func build(tree, to string) error {
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", to + string(filepath.Separator)}
	for _, pkg := range programs {
		args = append(args, pkg)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK="+filepath.Join(tree, "go.work"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the previous version: %w\n%s", err, out)
	}
	for name, pkg := range programs {
		if err := os.Rename(filepath.Join(to, filepath.Base(pkg)), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("build the previous version: %w", err)
		}
	}
	return nil
}

// binaries returns a directory with the programs of the previous version. They never change, so they are built once and kept in
// the cache, under the commit's name.
func binaries(root, cache string) (string, error) {
	to := filepath.Join(cache, "previous", Previous)
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return "", fmt.Errorf("keep the previous version: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(to), "build-")
	if err != nil {
		return "", fmt.Errorf("build the previous version: %w", err)
	}
	defer os.RemoveAll(work)
	tree, bin := filepath.Join(work, "tree"), filepath.Join(work, "bin")
	for _, dir := range []string{tree, bin} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return "", fmt.Errorf("build the previous version: %w", err)
		}
	}
	if err := source(root, tree); err != nil {
		return "", err
	}
	if err := build(tree, bin); err != nil {
		return "", err
	}
	if err := os.Rename(bin, to); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("keep the previous version: %w", err)
	}
	return to, nil
}
