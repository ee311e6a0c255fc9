package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/names"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/node"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/pki"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/policy"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/provision"
)

// NodeName is the one node's name.
const NodeName = node.Name

// KeptVariable names a directory in the environment: a node is made there, left up, and found there by the next test.
const KeptVariable = "SANDTRAIL_CLUSTER"

// Node starts a whole cluster of one node for a test, on which pods run in gVisor (runtime class gvisor) or as usual (runc), and ends it with
// the test. It needs root. Where $SANDTRAIL_CLUSTER names a directory, the node there is taken, or made and left up; tests then share it and
// must live with what others left.
func Node(t testing.TB) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real Kubernetes node")
	}
	b := binaries.Builder{Progress: progress(t)}
	if dir := os.Getenv(KeptVariable); dir != "" {
		c, err := Attach(context.Background(), dir)
		if errors.Is(err, node.ErrNotRunning) {
			c, err = StartNode(context.Background(), dir, b, true)
		}
		require.NoError(t, err)
		return c
	}
	// t.TempDir is removed while the kernel still unmounts, and its paths are too long for sockets.
	dir, err := os.MkdirTemp("", "st-node-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	c, err := StartNode(context.Background(), dir, b, false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Down(context.Background())) })
	return c
}

// StartNode is Node for those who have no test. dir is made; what an earlier node left there is removed. Unless keep is set the node ends with
// this process.
func StartNode(ctx context.Context, dir string, b binaries.Builder, keep bool) (c *Cluster, err error) {
	programs, err := b.Node(ctx)
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := clear(dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	n, err := node.Up(ctx, node.Options{
		Dir: dir, Keep: keep, Path: programs.Path,
		Env: []string{"LD_LIBRARY_PATH=" + programs.Library, "XTABLES_LIBDIR=" + filepath.Join(programs.Library, "xtables")},
	})
	if err != nil {
		return nil, err
	}
	c = &Cluster{
		Dir: dir, Server: server(n), HostAddress: n.HostAddress.String(),
		node: n, programs: programs, processes: process.Dial(n.Socket()),
	}
	if err := c.bringUp(ctx); err != nil {
		return nil, errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// clear makes the directory of a node, empty. One that runs there is an error.
func clear(dir string) error {
	switch _, err := node.Open(dir); {
	case err == nil:
		return fmt.Errorf("a node runs in %s already", dir)
	case !errors.Is(err, node.ErrNotRunning):
		return err
	}
	for _, sub := range []string{"logs", "pki", "etc", "etcd", "containerd", "volumes", "kubelet", "cni", "pod-logs"} {
		if err := os.RemoveAll(filepath.Join(dir, sub)); err != nil {
			return err
		}
	}
	for _, sub := range []string{"logs", "volumes", "pod-logs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func server(n *node.Node) string { return fmt.Sprintf("https://%s:6443", n.Address) }

func programsFile(dir string) string { return filepath.Join(dir, "programs.json") }

// Attach finds the node that runs in a directory; node.ErrNotRunning when none does.
func Attach(ctx context.Context, dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	n, err := node.Open(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Server: server(n), HostAddress: n.HostAddress.String(), node: n, processes: process.Dial(n.Socket())}
	text, err := os.ReadFile(programsFile(dir))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c.programs); err != nil {
		return nil, err
	}
	if c.authority, err = pki.Open(filepath.Join(dir, "pki")); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c, c.Ready(ctx)
}

// Down ends a whole node and waits until nothing of it is left on the host but its directory.
func (c *Cluster) Down(ctx context.Context) error {
	if c.node == nil {
		return errors.New("a control plane alone ends by its stop")
	}
	return c.node.Down(ctx)
}

func (c *Cluster) bringUp(ctx context.Context) error {
	p, err := c.prepare()
	if err != nil {
		return err
	}
	for _, s := range []process.Spec{p.etcdSpec(), p.apiserverSpec("--enable-admission-plugins=NodeRestriction"), c.containerdSpec()} {
		if err := c.processes.Start(ctx, s); err != nil {
			return err
		}
	}
	both, part := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := c.Ready(part); err != nil {
			return err
		}
		for _, s := range c.controllers() {
			if err := c.processes.Start(part, s); err != nil {
				return err
			}
		}
		return c.makeObjects(part)
	})
	both.Go(func() error {
		err := c.until(part, "containerd answers", []string{Containerd}, func(ctx context.Context) error {
			_, err := c.processes.Run(ctx, c.programs.CTR, "--address", socket, "version")
			return err
		})
		if err != nil {
			return err
		}
		return c.loadBase(part)
	})
	if err := both.Wait(); err != nil {
		return err
	}
	for _, s := range []process.Spec{c.kubeletSpec(), c.proxySpec()} {
		if err := c.processes.Start(ctx, s); err != nil {
			return err
		}
	}
	return c.NodeReady(ctx)
}

// prepare writes what the programs read.
func (c *Cluster) prepare() (place, error) {
	n := c.node
	text, err := json.Marshal(c.programs)
	if err != nil {
		return place{}, err
	}
	if err := os.WriteFile(programsFile(c.Dir), text, 0o600); err != nil {
		return place{}, err
	}
	if c.authority, err = certificates(c.Dir, NodeName, n.Address.String(), n.Services.Addr().Next().String()); err != nil {
		return place{}, err
	}
	for name, who := range map[string][]string{
		adminUser: {adminUser, adminGroup}, "controllers": {"system:kube-controller-manager"}, "scheduler": {"system:kube-scheduler"},
		"node": {"system:node:" + NodeName, "system:nodes"}, "proxy": {"system:kube-proxy"},
	} {
		if err := c.authority.WriteKubeconfig(name, c.Server, who[0], who[1:]...); err != nil {
			return place{}, err
		}
	}
	s := settings{
		Dir: c.Dir, PKI: c.authority.Dir, Node: NodeName, Address: n.Address.String(), Pods: n.Pods.String(), Domain: names.Domain,
		Network: c.programs.Network, Runc: c.programs.Runc, Runsc: c.programs.Runsc, Pause: PauseImage,
	}
	if err := s.writeConfig(); err != nil {
		return place{}, err
	}
	p := place{
		dir: c.Dir, kube: c.programs.Kube, bind: "0.0.0.0", advertise: n.Address.String(), etcd: 2379, etcdPeer: 2380, apiserver: 6443,
		services: n.Services.String(), authority: c.authority,
	}
	return p, c.connect()
}

func (c *Cluster) spec(name string, argv ...string) process.Spec {
	return process.Spec{Name: name, Argv: argv, Log: filepath.Join(c.Dir, "logs", name+".log")}
}

func (c *Cluster) containerdSpec() process.Spec {
	return c.spec(Containerd, c.programs.Containerd, "--config", filepath.Join(c.Dir, "etc/containerd.toml"))
}

func (c *Cluster) controllers() []process.Spec {
	a := c.authority
	local := c.spec(Provisioner, provision.Argv(a.KubeconfigFile(adminUser), filepath.Join(c.Dir, "volumes"), NodeName)...)
	dns := c.spec(Names, names.Argv(a.KubeconfigFile(adminUser), net.JoinHostPort(c.node.Address.String(), "53"))...)
	enforcer := c.spec(Policies, policy.Argv(a.KubeconfigFile(adminUser))...)
	local.Self, dns.Self, enforcer.Self = true, true, true
	return []process.Spec{
		// Its controllers each have an account of their own, and the usual limit of requests makes them wait for their tokens for seconds.
		c.spec(ControllerManager, c.programs.Kube, "controller-manager", "--kubeconfig="+a.KubeconfigFile("controllers"), "--bind-address=127.0.0.1",
			"--leader-elect=false", "--use-service-account-credentials", "--kube-api-qps=500", "--kube-api-burst=1000",
			"--service-account-private-key-file="+a.KeyFile("tokens"), "--root-ca-file="+a.CertificateFile("ca"),
			"--cluster-signing-cert-file="+a.CertificateFile("ca"), "--cluster-signing-key-file="+a.KeyFile("ca"), "--profiling=false",
			// A test of a lost node waits for these.
			"--node-monitor-period=1s", "--node-monitor-grace-period=30s"),
		c.spec(Scheduler, c.programs.Kube, "scheduler", "--kubeconfig="+a.KubeconfigFile("scheduler"), "--bind-address=127.0.0.1",
			"--leader-elect=false", "--profiling=false"),
		local, dns, enforcer,
	}
}

func (c *Cluster) kubeletSpec() process.Spec {
	return c.spec(Kubelet, c.programs.Kube, "kubelet", "--config="+filepath.Join(c.Dir, "etc/kubelet.yaml"), "--kubeconfig="+c.authority.KubeconfigFile("node"),
		"--node-ip="+c.node.Address.String(), "--hostname-override="+NodeName, "--root-dir="+filepath.Join(c.Dir, "kubelet"))
}

func (c *Cluster) proxySpec() process.Spec {
	return c.spec(Proxy, c.programs.Kube, "proxy", "--config="+filepath.Join(c.Dir, "etc/proxy.yaml"))
}

// makeObjects makes what a cluster for sandboxes has: the runtime classes and the class of volumes.
func (c *Cluster) makeObjects(ctx context.Context) error {
	for name, handler := range map[string]string{"gvisor": "runsc", "runc": "runc"} {
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
		if _, err := c.Client.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	remove, now := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: provision.Class, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: provision.Name, ReclaimPolicy: &remove, VolumeBindingMode: &now,
	}
	if _, err := c.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// NodeReady waits until the node takes pods: it is ready, and its default service account is there, without which a pod is refused.
func (c *Cluster) NodeReady(ctx context.Context) error {
	need := []string{Etcd, APIServer, Containerd, Kubelet, Proxy, ControllerManager, Scheduler, Provisioner, Names, Policies}
	return c.until(ctx, "the node is ready", need, func(ctx context.Context) error {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
			}
		}
		if len(n.Status.Conditions) == 0 || n.Spec.Unschedulable {
			return errors.New("the node has said nothing yet, or is cordoned")
		}
		_, err = c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}
