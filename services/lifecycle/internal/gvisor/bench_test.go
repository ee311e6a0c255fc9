package gvisor

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
)

// BenchmarkCreateDestroy is a whole create, which ends when an exec has worked, and a whole destroy: with the CPU that a sandbox
// has by default, and with as much as it wants.
func BenchmarkCreateDestroy(b *testing.B) {
	for name, millis := range map[string]uint32{"cpu=1": 1000, "cpu=4": 4000} {
		b.Run(name, func(b *testing.B) { createDestroy(b, millis) })
	}
}

func createDestroy(b *testing.B, millis uint32) {
	h := newHost(b, b.TempDir())
	var create, destroy time.Duration
	phases := map[string]time.Duration{}
	for b.Loop() {
		s := spec()
		s.CPUMillis, s.WorkspaceBytes = millis, 0
		begin := time.Now()
		c, err := h.Create(b.Context(), s)
		require.NoError(b, err)
		created := time.Now()
		_, err = h.Destroy(b.Context(), s.ID)
		require.NoError(b, err)
		create += created.Sub(begin)
		destroy += time.Since(created)
		for _, p := range c.Phases {
			phases[p.Name] += p.Took
		}
	}
	b.ReportMetric(float64(create.Microseconds())/1000/float64(b.N), "create-ms/op")
	b.ReportMetric(float64(destroy.Microseconds())/1000/float64(b.N), "destroy-ms/op")
	for name, took := range phases {
		b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), name+"-ms/op")
	}
}

// BenchmarkRunsc is what BenchmarkCreateDestroy is measured against: `runsc run` of a program in the same image to its end.
func BenchmarkRunsc(b *testing.B) {
	h := newHost(b, b.TempDir())
	img, err := h.o.Images.Ensure(b.Context(), debian.Reference, nil)
	require.NoError(b, err)
	dir := b.TempDir()
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.0",
		"process":    map[string]any{"user": map[string]any{"uid": 0, "gid": 0}, "args": []string{"/usr/bin/true"}, "env": img.Env, "cwd": "/"},
		"root":       map[string]any{"path": img.Rootfs, "readonly": true},
	})
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
	for b.Loop() {
		cmd := exec.Command(h.o.Runsc, "--root", filepath.Join(dir, "state"), "--platform", "systrap", "--network", "none", "--ignore-cgroups", "run", "--bundle", dir, "bench-"+ids.Short(ids.New()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		require.NoError(b, err, string(out))
	}
}
