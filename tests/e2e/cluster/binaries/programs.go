package binaries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	kubeVersion       = "v1.37.2"
	containerdVersion = "v2.4.2"
	gvisorVersion     = "v0.0.0-20260905035102-160fafc42237"
)

func kube() group {
	const at = " -X k8s.io/component-base/version."
	return group{
		name: "kube", compiles: 2400,
		ldflags: "-s -w" + at + "gitVersion=" + kubeVersion + at + "gitMajor=1" + at + "gitMinor=37" + at + "gitTreeState=clean" +
			at + "gitCommit=unknown" + at + "buildDate=2026-01-01T00:00:00Z",
		programs: []program{{"kube", "."}},
	}
}

func containerd() group {
	const from = "github.com/containerd/containerd/v2/cmd/"
	return group{
		name: "containerd", static: true, compiles: 900, tags: "urfave_cli_no_docs no_btrfs no_zfs no_devmapper",
		ldflags:  "-s -w -X github.com/containerd/containerd/v2/version.Version=" + containerdVersion,
		programs: []program{{"containerd", from + "containerd"}, {"containerd-shim-runc-v2", from + "containerd-shim-runc-v2"}, {"ctr", from + "ctr"}},
	}
}

func network() group {
	const from = "github.com/containernetworking/plugins/plugins/"
	return group{
		name: "network", static: true, compiles: 150, ldflags: "-s -w",
		programs: []program{{"bridge", from + "main/bridge"}, {"loopback", from + "main/loopback"}, {"host-local", from + "ipam/host-local"}, {"portmap", from + "meta/portmap"}},
	}
}

func shim() group {
	return group{
		name: "gvisor", static: true, compiles: 350, ldflags: "-s -w", edition: "oom score", vendor: passOverOOMScore,
		programs: []program{{"containerd-shim-runsc-v1", "gvisor.dev/gvisor/shim"}},
	}
}

func runsc() group {
	return group{
		name: "gvisor", static: true, compiles: 420, ldflags: "-s -w -X gvisor.dev/gvisor/runsc/version.version=" + gvisorVersion,
		programs: []program{{"runsc", "gvisor.dev/gvisor/runsc"}},
	}
}

// passOverOOMScore lets the shim start where the host gives no CAP_SYS_RESOURCE: containerd's helper passes EPERM over only inside a user
// namespace, and the shim, which asks for a negative score, ends by it.
func passOverOOMScore(vendor string) error {
	path := filepath.Join(vendor, "github.com/containerd/containerd/v2/pkg/sys/oom_linux.go")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const guard, importing = "if os.IsPermission(err) && (", "moby/sys/userns\""
	var out [][]byte
	guards := 0
	for line := range bytes.Lines(text) {
		switch {
		case bytes.Contains(line, []byte(guard)):
			guards++
			line = []byte("\t\tif os.IsPermission(err) {\n")
		case bytes.Contains(line, []byte(importing)):
			continue
		}
		out = append(out, line)
	}
	if guards == 0 {
		return fmt.Errorf("%s is not as expected: it has no %q", path, guard)
	}
	return os.WriteFile(path, bytes.Join(out, nil), 0o644)
}

// Kube returns the path of the program that holds etcd and all Kubernetes components, built now where the cache has none: about 15 minutes of
// CPU the first time. Its first argument names the component.
func (b Builder) Kube(ctx context.Context) (string, error) {
	b, err := b.withDefaults()
	if err != nil {
		return "", err
	}
	dir, err := b.get(ctx, kube())
	return filepath.Join(dir, "kube"), err
}

// Programs are the programs of a whole node, each an absolute path.
type Programs struct {
	// Path are the directories of all of them and of what they call (runc, iptables, …), for PATH.
	Path []string
	// Library is where the programs from packages find their shared libraries.
	Library string
	Kube    string
	// Containerd and CTR are containerd and its command line.
	Containerd, CTR string
	Runc, Runsc     string
	// Network holds the CNI plugins.
	Network string
	Busybox string
}

// Node returns the programs of a whole node, built or fetched now where the cache has none.
func (b Builder) Node(ctx context.Context) (Programs, error) {
	b, err := b.withDefaults()
	if err != nil {
		return Programs{}, err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return Programs{}, fmt.Errorf("the programs are built from source: %w", err)
	}
	packages, err := b.packages(ctx)
	if err != nil {
		return Programs{}, err
	}
	p := Programs{
		Library: filepath.Join(packages, "lib"), Runc: filepath.Join(packages, "bin/runc"), Busybox: filepath.Join(packages, "bin/busybox"),
		Path: []string{filepath.Join(packages, "bin")},
	}
	for _, part := range []struct {
		group group
		put   func(dir string)
	}{
		{network(), func(dir string) { p.Network = dir }},
		{containerd(), func(dir string) {
			p.Containerd, p.CTR, p.Path = filepath.Join(dir, "containerd"), filepath.Join(dir, "ctr"), append(p.Path, dir)
		}},
		{shim(), func(dir string) { p.Path = append(p.Path, dir) }},
		{kube(), func(dir string) { p.Kube = filepath.Join(dir, "kube") }},
	} {
		dir, err := b.get(ctx, part.group)
		if err != nil {
			return Programs{}, err
		}
		part.put(dir)
	}
	if p.Runsc, err = b.runsc(ctx); err != nil {
		return Programs{}, err
	}
	for _, path := range []string{p.Kube, p.Containerd, p.Runc, p.Runsc, p.Busybox} {
		if _, err := os.Stat(path); err != nil {
			return Programs{}, errors.Join(errors.New("the cache is incomplete"), err)
		}
	}
	return p, nil
}

// runsc is the one that the gvisor driver built, where its version is the shim's.
func (b Builder) runsc(ctx context.Context) (string, error) {
	path := filepath.Join(b.Cache, "bin", "runsc-"+gvisorVersion)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	dir, err := b.get(ctx, runsc())
	return filepath.Join(dir, "runsc"), err
}
