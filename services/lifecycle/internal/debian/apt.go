package debian

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

// fetch downloads the packages and all they depend on, and returns their files in order of name. apt gets a configuration of its
// own: the host's sources, keys, credentials and network settings are used where they lie, while its lists, its archive, its
// record of what is installed, its pins and its hooks are not.
func fetch(ctx context.Context, dir string, p prepare.Progress) ([]string, error) {
	config, err := configureApt(ctx, dir)
	if err != nil {
		return nil, err
	}
	p.Report("image: packages", 0, 0, "reading package lists")
	if err := runApt(ctx, config, p, "update"); err != nil {
		return nil, err
	}
	args := append([]string{"install", "--yes", "--download-only", "--no-install-recommends"}, packages...)
	if err := runApt(ctx, config, p, args...); err != nil {
		return nil, err
	}
	all, err := filepath.Glob(filepath.Join(dir, "cache", "archives", "*.deb"))
	if err != nil {
		return nil, err
	}
	sort.Strings(all)
	var debs []string
	for _, deb := range all {
		if !isDropped(strings.SplitN(filepath.Base(deb), "_", 2)[0]) {
			debs = append(debs, deb)
		}
	}
	if len(debs) < len(packages) {
		return nil, fmt.Errorf("apt fetched %d packages, fewer than were asked for", len(debs))
	}
	return debs, nil
}

func isDropped(name string) bool {
	for _, d := range dropped {
		if prefix, ok := strings.CutSuffix(d, "*"); d == name || ok && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func configureApt(ctx context.Context, dir string) (string, error) {
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "log", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "state", "status"), nil, 0o644); err != nil {
		return "", err
	}
	host, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return "", fmt.Errorf("read the configuration of apt: %w", err)
	}
	var b bytes.Buffer
	for line := range strings.Lines(string(host)) {
		// Acquire has proxies and TLS settings; its index targets name lists that only desktop programs want.
		if strings.HasPrefix(line, "Acquire::") && !strings.HasPrefix(line, "Acquire::IndexTargets") && !strings.HasPrefix(line, "Acquire::Languages") {
			b.WriteString(line)
		}
	}
	for _, s := range [][2]string{
		{"Dir::State", dir + "/state"},
		{"Dir::State::status", dir + "/state/status"},
		{"Dir::Cache", dir + "/cache"},
		{"Dir::Log", dir + "/log"},
		{"Dir::Etc::main", "/dev/null"},
		{"Dir::Etc::parts", dir + "/empty"},
		{"Dir::Etc::preferences", "/dev/null"},
		{"Dir::Etc::preferencesparts", dir + "/empty"},
		{"Acquire::Languages", "none"},
		{"APT::Sandbox::User", ""},
		{"APT::Get::List-Cleanup", "false"},
	} {
		fmt.Fprintf(&b, "%s %q;\n", s[0], s[1])
	}
	path := filepath.Join(dir, "apt.conf")
	// A proxy's address may hold a password: nobody else reads the file, and it goes with the build.
	return path, os.WriteFile(path, b.Bytes(), 0o600)
}

func runApt(ctx context.Context, config string, p prepare.Progress, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet"}, args...)...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+config, "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &limited{w: &stderr, left: 4096}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var done int64
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Get:") {
			done++
			p.Report("image: packages", done, 0, "downloading")
		}
	}
	_, _ = io.Copy(io.Discard, stdout)
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, stderr.Bytes())
	}
	return nil
}

// limited drops what is over its bound.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	keep := min(len(p), l.left)
	l.left -= keep
	if _, err := l.w.Write(p[:keep]); err != nil {
		return 0, err
	}
	return len(p), nil
}
