package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeTree makes groups as directories: "path: procs; available; enabled". A path that ends in ! is the host's topmost.
func fakeTree(t *testing.T, lines ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, line := range lines {
		path, rest, _ := strings.Cut(line, ":")
		fields := strings.Split(rest, ";")
		dir := filepath.Join(root, "cgroup", strings.TrimSuffix(path, "!"))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		files := map[string]string{"cgroup.procs": fields[0], "cgroup.controllers": fields[1], "cgroup.subtree_control": fields[2]}
		if !strings.HasSuffix(path, "!") {
			files["cgroup.type"] = "domain\n"
		}
		for name, text := range files {
			text = strings.ReplaceAll(strings.TrimSpace(text), "self", strconv.Itoa(os.Getpid()))
			text = strings.ReplaceAll(text, "all", "cpuset cpu io memory pids")
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	return filepath.Join(root, "cgroup")
}

func TestHome(t *testing.T) {
	for name, test := range map[string]struct {
		tree []string
		own  string
		plan plan
		fail bool
	}{
		"a service of its own": {
			tree: []string{"!: 1; all; all", "system.slice: ; all; memory pids", "system.slice/x.service: self; all; "},
			own:  "system.slice/x.service", plan: plan{"system.slice/x.service", true, true},
		},
		"the same, behind it": {
			tree: []string{"!: 1; all; all", "system.slice: ; all; memory pids", "system.slice/x.service: ; all; memory cpu pids", "system.slice/x.service/" + leaf + ": self; all; "},
			own:  "system.slice/x.service/" + leaf, plan: plan{home: "system.slice/x.service"},
		},
		"the same, interrupted between": {
			tree: []string{"!: 1; all; all", "system.slice: ; all; memory pids", "system.slice/x.service: ; all; ", "system.slice/x.service/" + leaf + ": self; all; "},
			own:  "system.slice/x.service/" + leaf, plan: plan{home: "system.slice/x.service", enable: true},
		},
		"a session with somebody's shell in it": {
			tree: []string{"!: 1; all; all", "user.slice: ; all; memory pids", "user.slice/session-1.scope: 1 self; memory pids; "},
			own:  "user.slice/session-1.scope", plan: plan{home: ""},
		},
		"a container, whose topmost group is not the host's": {
			tree: []string{": 1 self; all; "},
			plan: plan{evacuate: true, enable: true},
		},
		"the host's topmost group": {
			tree: []string{"!: 1 self; all; "},
			plan: plan{enable: true},
		},
		"the host's topmost group, fit already": {
			tree: []string{"!: 1 self; all; all"},
		},
		"a service without the controllers in one that has not all": {
			tree: []string{"!: 1; memory; memory", "x.service: self; memory; "},
			own:  "x.service", fail: true,
		},
		"a process that cannot be seen": {
			tree: []string{"!: 1; all; all", "x.service: 0 self; all; "},
			own:  "x.service", plan: plan{home: ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := fakeTree(t, test.tree...)
			got, err := planFor(filepath.Join(root, test.own))
			if test.fail {
				require.ErrorContains(t, err, "Delegate=yes")
				return
			}
			require.NoError(t, err)
			test.plan.home = filepath.Join(root, test.plan.home)
			require.Equal(t, test.plan, got)
			if !got.enable {
				require.Equal(t, got.home, homeOf(filepath.Join(root, test.own)), "who opens a group finds the same")
			}
		})
	}
}

// TestHomeOfLeaf: between moving and giving controllers on, groups are looked for where they will be.
func TestHomeOfLeaf(t *testing.T) {
	root := fakeTree(t, ": ; memory; ", "x: ; memory; ", "x/"+leaf+": self; memory; ")
	require.Equal(t, filepath.Join(root, "x"), homeOf(filepath.Join(root, "x", leaf)))
	require.Equal(t, filepath.Join(root, "x"), homeOf(filepath.Join(root, "x")))
}
