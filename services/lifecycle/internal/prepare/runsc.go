package prepare

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// RunscVersion is the gVisor module version that is built. The keeper speaks the sentry's control protocol, which is
	// internal to gVisor: a newer version is taken only when the keeper's tests pass with it.
	RunscVersion = "v0.0.0-20260905035102-160fafc42237"
	runscPackage = "gvisor.dev/gvisor/runsc"
	// An installed runsc is used when it was released between these days, since the control protocol may differ outside.
	oldestRunsc = "20260701"
	newestRunsc = "20261231"
)

// Runsc returns the path of a runsc that has passed Probe: the configured one, the one in the cache, a fitting one in PATH, or
// else one built now, which takes minutes the first time. Two processes at once build it once.
func Runsc(ctx context.Context, o Options) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	if o.Runsc != "" {
		if err := Probe(ctx, o.Runsc); err != nil {
			return "", fmt.Errorf("the configured runsc: %w", err)
		}
		return filepath.Abs(o.Runsc)
	}
	cached := filepath.Join(o.CacheDir, "bin", "runsc-"+RunscVersion)
	if isProgram(cached) {
		return cached, probed(ctx, cached)
	}
	if path, ok := installedRunsc(ctx, o); ok {
		return path, nil
	}
	release, err := Lock(ctx, filepath.Join(o.CacheDir, "bin", "runsc.lock"))
	if err != nil {
		return "", err
	}
	defer release()
	if !isProgram(cached) {
		if err := buildRunsc(ctx, o, cached); err != nil {
			return "", err
		}
	}
	return cached, probed(ctx, cached)
}

func probed(ctx context.Context, path string) error {
	if err := Probe(ctx, path); err != nil {
		return fmt.Errorf("runsc does not run here: %w", err)
	}
	return nil
}

func installedRunsc(ctx context.Context, o Options) (string, bool) {
	path, err := exec.LookPath("runsc")
	if err != nil {
		return "", false
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil || !fits(string(out)) {
		o.Log.Info("the runsc in PATH is of another version; building one", "path", path)
		return "", false
	}
	if err := Probe(ctx, path); err != nil {
		o.Log.Warn("the runsc in PATH does not run here; building one", "path", path, "error", err)
		return "", false
	}
	path, err = filepath.Abs(path)
	return path, err == nil
}

var dateOf = regexp.MustCompile(`\b(20\d{6})(\d{6})?\b`)

// fits reads the day of a release ("release-20260817.0") or of a module version and compares it with the bounds.
func fits(version string) bool {
	m := dateOf.FindStringSubmatch(version)
	return m != nil && m[1] >= oldestRunsc && m[1] <= newestRunsc
}

// runscPackages is about how many packages the build of runsc compiles; only the progress depends on it.
const runscPackages = 420

func buildRunsc(ctx context.Context, o Options, to string) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("runsc is not installed and there is no Go to build it: install runsc or Go, or name a runsc in the configuration: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), "build-")
	if err != nil {
		return fmt.Errorf("build runsc: %w", err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "go", "install", "-v", "-trimpath",
		"-ldflags", "-s -w -X "+runscPackage+"/version.version="+RunscVersion, runscPackage+"@"+RunscVersion)
	// The build stands outside of any module or workspace that the caller happens to be in.
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOBIN="+dir, "GOFLAGS=-buildvcs=false", "GOOS=", "GOARCH=")
	if err := runBuild(cmd, "runsc", runscPackages, o.Progress); err != nil {
		return fmt.Errorf("build runsc %s: %w", RunscVersion, err)
	}
	return install(filepath.Join(dir, "runsc"), to)
}

// runBuild runs a `go … -v` and reports each package that it names. The error holds the end of its output.
func runBuild(cmd *exec.Cmd, stage string, total int64, p Progress) error {
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.Report(stage, 0, total, "building from source")
	var last tail
	var done int64
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		_, _ = last.Write(append(lines.Bytes(), '\n'))
		done++
		p.Report(stage, min(done, total), total, strings.TrimSpace(lines.Text()))
	}
	scanErr := lines.Err()
	if err := errors.Join(scanErr, cmd.Wait()); err != nil {
		return fmt.Errorf("%w: %s", err, last.b)
	}
	p.Report(stage, total, total, "built")
	return nil
}
