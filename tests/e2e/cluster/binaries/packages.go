package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// hostPrograms are what the node takes from Debian packages: package and the paths of the programs below it. They are unpacked in the cache,
// not installed.
var hostPrograms = map[string][]string{
	"runc":           {"usr/sbin/runc", "usr/bin/runc"},
	"busybox-static": {"bin/busybox", "usr/bin/busybox"},
	"iptables":       {"usr/sbin/xtables-nft-multi"},
	"ipset":          {"sbin/ipset", "usr/sbin/ipset"},
	"conntrack":      {"usr/sbin/conntrack"},
}

// hostLibraries are the packages of their shared libraries that a host may lack.
var hostLibraries = []string{
	"libxtables12", "libip4tc2", "libip6tc2", "libnftnl11", "libmnl0", "libnfnetlink0", "libnetfilter-conntrack3", "libipset13", "libseccomp2",
}

// packages fetches and unpacks them: bin holds the programs, lib the libraries and the extensions of iptables.
func (b Builder) packages(ctx context.Context) (string, error) {
	var names []string
	for name := range hostPrograms {
		names = append(names, name)
	}
	names = append(names, hostLibraries...)
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("the programs of packages: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%v %v 1 %s", hostPrograms, hostLibraries, release))
	return b.made(ctx, "packages-"+hex.EncodeToString(sum[:])[:12], func(dir string) error {
		b.Progress.report("packages", 0, len(names), "fetch")
		apt := filepath.Join(dir, "apt")
		if err := fetch(ctx, apt, names); err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(apt, "*.deb"))
		if err != nil {
			return err
		}
		for i, file := range files {
			b.Progress.report("packages", i, len(files), filepath.Base(file))
			if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", file, filepath.Join(dir, "root")).CombinedOutput(); err != nil {
				return fmt.Errorf("unpack %s: %w: %s", filepath.Base(file), err, out)
			}
		}
		if err := arrange(dir); err != nil {
			return err
		}
		b.Progress.report("packages", len(files), len(files), "done")
		return os.RemoveAll(apt)
	})
}

// fetch downloads packages by the host's sources, with lists of its own below dir: those of the host may be empty and are left alone.
func fetch(ctx context.Context, dir string, names []string) error {
	for _, sub := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	options := []string{"-qq", "-o", "Dir::State::lists=" + dir + "/lists", "-o", "Dir::Cache=" + dir, "-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none"}
	for _, args := range [][]string{{"update"}, append([]string{"download"}, names...)} {
		get := exec.CommandContext(ctx, "apt-get", append(append([]string{}, options...), args...)...)
		get.Dir = dir
		if out, err := get.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// arrange puts what is needed into bin and lib, by relative links, since the directory is renamed when it is whole.
func arrange(dir string) error {
	for _, sub := range []string{"bin", "lib"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	for name, paths := range hostPrograms {
		found := ""
		for _, path := range paths {
			if _, err := os.Stat(filepath.Join(dir, "root", path)); err == nil {
				found = path
			}
		}
		if found == "" {
			return fmt.Errorf("package %s has none of %v", name, paths)
		}
		if err := os.Symlink(filepath.Join("../root", found), filepath.Join(dir, "bin", filepath.Base(found))); err != nil {
			return err
		}
	}
	for _, alias := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.Symlink("xtables-nft-multi", filepath.Join(dir, "bin", alias)); err != nil {
			return err
		}
	}
	libraries, err := filepath.Glob(filepath.Join(dir, "root/usr/lib/*/*.so*"))
	if err != nil {
		return err
	}
	more, err := filepath.Glob(filepath.Join(dir, "root/lib/*/*.so*"))
	if err != nil {
		return err
	}
	for _, path := range append(libraries, more...) {
		rel, err := filepath.Rel(filepath.Join(dir, "lib"), path)
		if err != nil {
			return err
		}
		if err := os.Symlink(rel, filepath.Join(dir, "lib", filepath.Base(path))); err != nil {
			return err
		}
	}
	extensions, err := filepath.Glob(filepath.Join(dir, "root/usr/lib/*/xtables"))
	if err != nil || len(extensions) == 0 {
		return fmt.Errorf("package iptables has no extensions: %w", err)
	}
	rel, err := filepath.Rel(filepath.Join(dir, "lib"), extensions[0])
	if err != nil {
		return err
	}
	return os.Symlink(rel, filepath.Join(dir, "lib/xtables"))
}
