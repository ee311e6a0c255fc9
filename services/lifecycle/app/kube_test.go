package app_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/services/lifecycle/app"
	"github.com/sandtrail/sandtrail/toolbox/credentials"
)

// kubeConfig is complete; change alters the cluster file.
func kubeConfig(t *testing.T, file string) app.Config {
	t.Helper()
	dir := t.TempDir()
	authority, err := credentials.NewAuthority(time.Hour)
	require.NoError(t, err)
	own, err := credentials.Issue(authority, "lifecycle", time.Hour)
	require.NoError(t, err)
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		return path
	}
	return app.Config{
		Roles: []string{app.RoleWorker}, DriverName: app.DriverKube, SealKeyFile: "seal.key",
		Kube: app.KubeConfig{
			Kubeconfig: filepath.Join(dir, "none"), File: write("cluster.yaml", []byte(file)), AgentCA: write("ca.crt", authority.Cert),
			AgentCert: write("tls.crt", own.Cert), AgentKey: write("tls.key", own.Key),
		},
	}
}

const clusterFile = `
namespace: sandboxes
servicesNamespace: sandtrail
toolbox: {image: registry.example/agent:1, source: image}
profiles:
  default: {runtimeClass: gvisor, registries: [docker.io/library], cpuRequest: 25}
  large: {nodeSelector: {pool: large}, tolerations: [{key: large, operator: Exists}], pullSecrets: [acme]}
tenants: {acme: large}
`

func TestTheConfigurationOfAClusterIsCheckedBeforeAnythingBegins(t *testing.T) {
	require.NoError(t, kubeConfig(t, clusterFile).Validate(), "no state directory is needed")

	err := kubeConfig(t, "namespace: A_b\nport: 1\ntenants: {acme: none}\n").Validate()
	for _, part := range []string{"namespace:", "toolbox image:", "port:", "tenant acme:"} {
		require.ErrorContains(t, err, part)
	}
	require.ErrorContains(t, kubeConfig(t, clusterFile+"unknown: 1\n").Validate(), "unknown")

	missing := app.Config{Roles: []string{app.RoleWorker}, DriverName: app.DriverKube}
	err = missing.Validate()
	for _, part := range []string{"seal key file:", "agent CA:", "agent certificate:", "agent key:", "cluster file:"} {
		require.ErrorContains(t, err, part)
	}
	missing.Warm.Max = 1
	require.ErrorContains(t, missing.Validate(), "warm max:")
	require.ErrorContains(t, app.Config{DriverName: "docker"}.Validate(), "driver:")

	wrong := kubeConfig(t, clusterFile)
	wrong.Kube.AgentKey = wrong.Kube.AgentCA
	require.ErrorContains(t, wrong.Validate(), "certificate for agents")
}
