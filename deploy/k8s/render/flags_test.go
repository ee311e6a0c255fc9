package render_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandtrail/sandtrail/deploy/k8s/images"
	"github.com/sandtrail/sandtrail/toolbox/credentials"
)

// TestServicesTakeTheFlagsOfTheChart starts each program as its pod does, with --validate: an unknown flag or a value that is refused
// would otherwise be seen in a cluster first.
func TestServicesTakeTheFlagsOfTheChart(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds every service")
	}
	bin := t.TempDir()
	packages := map[string]string{}
	for _, p := range images.Programs() {
		packages[p.Name] = p.Package
	}
	secrets := t.TempDir()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	for _, name := range []string{"nats/seed", "nats-tls/ca.crt"} {
		require.NoError(t, os.MkdirAll(filepath.Join(secrets, filepath.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(secrets, name), seed, 0o600))
	}
	agents(t, secrets)
	here := func(s string) string {
		return strings.ReplaceAll(strings.ReplaceAll(s, "/secrets/", secrets+"/"), "/config/", secrets+"/config/")
	}
	checked := 0
	for _, installation := range []string{"as it is", "everything"} {
		all := rendered(t, installations[installation]).Objects
		write(t, filepath.Join(secrets, "config", "cluster.yaml"), clusterFile(t, all))
		for _, p := range pods(t, all) {
			c := p.spec.Containers[0]
			_, name, _ := strings.Cut(c.Image, "/sandtrail-")
			name, _, _ = strings.Cut(name, ":")
			if name == "nats" || name == "cli" {
				continue // what is no service has no --validate
			}
			program := filepath.Join(bin, name)
			if _, err := os.Stat(program); err != nil {
				build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", program, packages[name])
				build.Dir = filepath.Join(dir, "../..")
				build.Env = append(os.Environ(), "CGO_ENABLED=0")
				out, err := build.CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			var args []string
			for _, a := range c.Args {
				args = append(args, here(a))
			}
			cmd := exec.CommandContext(t.Context(), program, append(args, "--validate")...)
			for _, e := range c.Env {
				value := here(e.Value)
				if e.ValueFrom != nil {
					value = "clickhouse://user:password@clickhouse:9000"
				}
				cmd.Env = append(cmd.Env, e.Name+"="+value)
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s %s: %s", p.name, args, out)
			checked++
		}
	}
	require.Equal(t, 2*6, checked)
	refused := exec.CommandContext(t.Context(), filepath.Join(bin, "gc"), "--never-heard-of", "--validate")
	require.Error(t, refused.Run())
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// agents makes what callers of agents hold, and a certificate for the gateway.
func agents(t *testing.T, dir string) {
	t.Helper()
	authority, err := credentials.NewAuthority(time.Hour)
	require.NoError(t, err)
	pair, err := credentials.Issue(authority, "test", time.Hour)
	require.NoError(t, err)
	write(t, filepath.Join(dir, "agent-ca", "ca.crt"), authority.Cert)
	write(t, filepath.Join(dir, "agent", "tls.crt"), pair.Cert)
	write(t, filepath.Join(dir, "agent", "tls.key"), pair.Key)
	write(t, filepath.Join(dir, "tls", "tls.crt"), pair.Cert)
	write(t, filepath.Join(dir, "tls", "tls.key"), pair.Key)
}

func clusterFile(t *testing.T, all []unstructured.Unstructured) []byte {
	t.Helper()
	for _, o := range all {
		if c, ok := typed(t, o).(*corev1.ConfigMap); ok && c.Data["cluster.yaml"] != "" {
			return []byte(c.Data["cluster.yaml"])
		}
	}
	require.Fail(t, "no cluster file")
	return nil
}
