//go:build cluster

package kube

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/runtime/runtimetest"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
	control "github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/credentials"
)

const agentImage = "registry.example/agent:test"

// TestContractOnANode runs the contract of drivers on a whole node: scheduler, kubelet, gVisor pods, and the real agent in them.
func TestContractOnANode(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a real Kubernetes node")
	}
	c := control.Node(t)
	require.NoError(t, c.LoadSandboxImage(t.Context(), binaries.Builder{}))
	require.NoError(t, c.LoadImage(t.Context(), agentImage, imageOfTheAgent(t)))
	authority, err := credentials.NewAuthority(time.Hour)
	require.NoError(t, err)
	agents := Called(own(t, authority))
	var spaces atomic.Int64
	runtimetest.Run(t, func(t *testing.T) runtimetest.Fixture {
		ns := fmt.Sprintf("contract-%d", spaces.Add(1))
		makeSpace(t, c, ns)
		cfg := manifest.Config{
			Namespace: ns, ClientCA: string(authority.Cert), Toolbox: manifest.Toolbox{Image: agentImage},
			// The calls come from this host.
			Clients: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: c.HostAddress + "/32"}}},
			// Two sandboxes of two cores are to fit on a small node.
			Profiles: map[string]manifest.Profile{manifest.DefaultProfile: {CPURequest: 1, MemoryRequest: 1, StorageRequest: 1}},
		}
		d, err := New(t.Context(), Options{Client: c.Client, Config: cfg, Worker: "east", Agents: agents, Meter: Told{Agents: agents}})
		require.NoError(t, err)
		t.Cleanup(d.Close)
		return runtimetest.Fixture{
			Driver: d, Image: control.SandboxImage,
			Leftovers: func(id string) (left []string) {
				pods, err := c.Client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: manifest.LabelSandbox + "=" + id})
				require.NoError(t, err)
				for _, p := range pods.Items {
					left = append(left, "pod "+p.Name)
				}
				return left
			},
			Exec: func(ctx context.Context, id, command string) (string, int, error) {
				conn, err := d.Dial(ctx, id)
				if err != nil {
					return "", 0, err
				}
				_ = conn.Close()
				// An agent wants to be told which pod is meant.
				return execWith(ctx, agents.Client(*d.endpoint(d.current(id))), command)
			},
		}
	})
}

// own is what this process shows to agents.
func own(t *testing.T, authority credentials.Pair) *client.Credentials {
	t.Helper()
	pair, err := credentials.Issue(authority, "contract", time.Hour)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	require.NoError(t, os.WriteFile(cert, pair.Cert, 0o600))
	require.NoError(t, os.WriteFile(key, pair.Key, 0o600))
	c, err := client.LoadCredentials(cert, key)
	require.NoError(t, err)
	return c
}

// makeSpace makes a namespace as the chart does, and waits until pods can be made in it.
func makeSpace(t *testing.T, c *control.Cluster, name string) {
	t.Helper()
	spaces := c.Client.CoreV1().Namespaces()
	_, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, spaces.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	require.Eventually(t, func() bool {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(context.Background(), "default", metav1.GetOptions{})
		return err == nil
	}, time.Minute, 20*time.Millisecond)
}

// imageOfTheAgent holds the agent and nothing else.
func imageOfTheAgent(t *testing.T) v1.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "github.com/sandtrail/sandtrail/toolbox/cmd/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	program, err := os.ReadFile(path)
	require.NoError(t, err)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/sandtrail-agent", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	require.NoError(t, err)
	image, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	file, err := image.ConfigFile()
	require.NoError(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	image, err = mutate.ConfigFile(image, file)
	require.NoError(t, err)
	return image
}
