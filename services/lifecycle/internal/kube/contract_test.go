//go:build cluster

// The API server takes a quarter of an hour to build the first time: make test-k8s.

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/runtime/runtimetest"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/gvisor"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	control "github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// TestContract runs the contract of drivers against a real API server, with its admission, watches and preconditions. In place of the
// scheduler, the controllers and the kubelet there is a node of the test's own, which runs each pod as a real sandbox on this host.
func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a real API server and real sandboxes")
	}
	c := control.ControlPlane(t)
	require.NoError(t, prepareCluster(t.Context(), c.Client))
	host := newHost(t)
	var spaces atomic.Int64
	runtimetest.Run(t, func(t *testing.T) runtimetest.Fixture {
		ns := fmt.Sprintf("sandboxes-%d", spaces.Add(1))
		_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: ns, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		n := newNode(t, c.Client, ns, host)
		cfg := config()
		cfg.Namespace = ns
		d, err := New(t.Context(), Options{Client: c.Client, Config: cfg, Worker: "east", Agents: n, Meter: n})
		require.NoError(t, err)
		t.Cleanup(d.Close)
		return runtimetest.Fixture{
			Driver: d, Image: debian.Reference, Leftovers: n.leftovers,
			Exec: func(ctx context.Context, id, command string) (string, int, error) {
				return execIn(ctx, func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, id) }, command)
			},
		}
	})
}

func prepareCluster(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}, Handler: "runsc"}, metav1.CreateOptions{})
	return err
}

func execIn(ctx context.Context, dial func(context.Context) (net.Conn, error), command string) (string, int, error) {
	return execWith(ctx, client.New(dial, ""), command)
}

func execWith(ctx context.Context, c *client.Client, command string) (string, int, error) {
	execID := ids.New()
	if _, err := c.Start(ctx, &toolboxv1.Start{ExecId: execID, Argv: []string{"/bin/sh", "-c", command}}); err != nil {
		return "", 0, err
	}
	stream, err := c.Attach(ctx, &toolboxv1.Attach{ExecId: execID})
	if err != nil {
		return "", 0, err
	}
	defer stream.Close()
	var out strings.Builder
	for {
		e, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return out.String(), 0, errors.New("the stream ended without an end of the program")
		case err != nil:
			return out.String(), 0, err
		case e.GetEnd() != nil:
			return out.String(), int(e.GetEnd().GetExitCode()), nil
		}
		out.Write(e.GetData().GetData())
	}
}

// newHost is gVisor on this host, with which nodes run their pods.
func newHost(t *testing.T) *gvisor.Driver {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	require.NoError(t, cgroup.Settle())
	runsc, err := prepare.Runsc(t.Context(), prepare.Options{})
	require.NoError(t, err)
	toolbox, err := prepare.Toolbox(t.Context(), prepare.Options{})
	require.NoError(t, err)
	dir, err := prepare.CacheDir()
	require.NoError(t, err)
	images, err := image.Open(image.Options{Dir: filepath.Join(dir, "test-images"), HostIDBase: gvisor.DefaultHostIDBase, Sources: map[string]image.Source{
		debian.Reference: func(ctx context.Context, p prepare.Progress) (v1.Image, error) {
			return debian.Build(ctx, debian.Options{Progress: p})
		},
	}})
	require.NoError(t, err)
	_, err = images.Ensure(t.Context(), debian.Reference, nil)
	require.NoError(t, err)
	state, owner := t.TempDir(), uint32(gvisor.DefaultHostIDBase+gvisor.DefaultUID)
	spaces, err := workspace.Open(workspace.Options{Dir: filepath.Join(state, "workspaces"), UID: owner, GID: owner})
	require.NoError(t, err)
	group := fmt.Sprintf("sandtrail-kube-test-%d", os.Getpid())
	t.Cleanup(func() {
		spaces.Close()
		if g, err := cgroup.Open(group); err == nil {
			require.NoError(t, g.Remove())
		}
	})
	d, err := gvisor.New(gvisor.Options{
		StateDir: state, Runsc: runsc, Toolbox: toolbox, Images: images, Workspaces: spaces, HostIDBase: gvisor.DefaultHostIDBase, Cgroup: group,
	})
	require.NoError(t, err)
	return d
}

// node stands for scheduler, controllers and kubelet of one namespace. A pod's sandbox on the host has the UID of its claim as its id, so
// that the workspace is the claim's.
type node struct {
	t      *testing.T
	client kubernetes.Interface
	ns     string
	host   *gvisor.Driver
	agents *agents

	mu     sync.Mutex
	guests map[types.UID]string // by pod: its claim's UID
}

func newNode(t *testing.T, c kubernetes.Interface, ns string, host *gvisor.Driver) *node {
	n := &node{t: t, client: c, ns: ns, host: host, agents: &agents{t: t, dir: t.TempDir(), all: map[types.UID]*agent{}}, guests: map[types.UID]string{}}
	f := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(ns))
	work := make(chan func(), 1024)
	each := func(do func(any)) cache.ResourceEventHandlerFuncs {
		return cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { work <- func() { do(obj) } }, UpdateFunc: func(_, obj any) { work <- func() { do(obj) } },
		}
	}
	_, err := f.Core().V1().Pods().Informer().AddEventHandler(each(func(obj any) { n.pod(obj.(*corev1.Pod)) }))
	require.NoError(t, err)
	_, err = f.Core().V1().PersistentVolumeClaims().Informer().AddEventHandler(each(func(obj any) { n.claim(obj.(*corev1.PersistentVolumeClaim)) }))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	f.StartWithContext(ctx)
	var crew sync.WaitGroup
	for range 4 {
		crew.Go(func() {
			for {
				select {
				case do := <-work:
					do()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		stop()
		f.Shutdown()
		crew.Wait()
		for _, id := range n.guests {
			_, err := host.Destroy(context.Background(), id)
			require.NoError(t, err)
		}
	})
	return n
}

// pod brings one a step further. What fails because of a change meanwhile is done at that change.
func (n *node) pod(p *corev1.Pod) {
	ctx := context.Background()
	pods := n.client.CoreV1().Pods(n.ns)
	switch {
	case p.DeletionTimestamp != nil:
		if id := n.guest(p.UID); id != "" {
			if _, err := n.host.Destroy(ctx, id); err != nil {
				n.t.Errorf("end pod %s: %v", p.Name, err)
				return
			}
		}
		_ = pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	case p.Spec.NodeName == "":
		// A claim comes at the same time as its pod, mostly a moment later.
		if _, err := n.client.CoreV1().PersistentVolumeClaims(n.ns).Get(ctx, claimOf(p), metav1.GetOptions{}); err != nil {
			_ = time.AfterFunc(5*time.Millisecond, func() { n.pod(p) })
			return
		}
		_ = pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{})
	case p.Status.PodIP == "":
		n.start(ctx, p)
	}
}

// start is a kubelet's: from here on the agent answers, and makes the sandbox once it has the environment.
func (n *node) start(ctx context.Context, p *corev1.Pod) {
	claim, err := n.client.CoreV1().PersistentVolumeClaims(n.ns).Get(ctx, claimOf(p), metav1.GetOptions{})
	if err != nil {
		return
	}
	n.mu.Lock()
	_, known := n.guests[p.UID]
	n.guests[p.UID] = string(claim.UID)
	n.mu.Unlock()
	if !known {
		n.agents.start(p, func(r *toolboxv1.Configure) error {
			_, err := n.host.Create(context.Background(), n.spec(p, string(claim.UID), r.Env))
			return err
		})
	}
	p = p.DeepCopy()
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}}, StartTime: new(metav1.Now()),
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: p.Spec.Containers[0].Name, Image: p.Spec.Containers[0].Image, ImageID: "example/image@sha256:" + strings.Repeat("ab", 32),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}},
	}
	_, _ = n.client.CoreV1().Pods(n.ns).UpdateStatus(ctx, p, metav1.UpdateOptions{})
}

func (n *node) spec(p *corev1.Pod, id string, env map[string]string) runtime.Spec {
	limits := p.Spec.Containers[0].Resources.Limits
	return runtime.Spec{
		ID: id, Tenant: tenantOf(p), Image: p.Spec.Containers[0].Image, Hostname: p.Spec.Hostname, Env: env,
		MountPath: p.Spec.Containers[0].WorkingDir, WorkspaceBytes: 64 << 20, PIDs: 64,
		CPUMillis: uint32(limits.Cpu().MilliValue()), MemoryBytes: uint64(limits.Memory().Value()),
	}
}

// claim removes one for good once it is to go, as the controllers do.
func (n *node) claim(c *corev1.PersistentVolumeClaim) {
	if c.DeletionTimestamp == nil {
		return
	}
	if err := n.host.DeleteWorkspace(context.Background(), string(c.UID)); err != nil {
		n.t.Errorf("remove the workspace of claim %s: %v", c.Name, err)
		return
	}
	_, _ = n.client.CoreV1().PersistentVolumeClaims(n.ns).Patch(context.Background(), c.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
}

func (n *node) guest(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.guests[uid]
}

// leftovers are what the API server and the host still have.
func (n *node) leftovers(id string) (left []string) {
	pods, err := n.client.CoreV1().Pods(n.ns).List(context.Background(), metav1.ListOptions{LabelSelector: "sandtrail.dev/sandbox=" + id})
	require.NoError(n.t, err)
	for _, p := range pods.Items {
		left = append(left, "pod "+p.Name)
	}
	claims, err := n.client.CoreV1().PersistentVolumeClaims(n.ns).List(context.Background(), metav1.ListOptions{LabelSelector: "sandtrail.dev/sandbox=" + id})
	require.NoError(n.t, err)
	for _, c := range claims.Items {
		st, err := n.host.Inspect(context.Background(), string(c.UID))
		require.NoError(n.t, err)
		if st.Exists {
			left = append(left, "sandbox on the host")
		}
	}
	return left
}

// The node is the way to its agents, and measures.

func (n *node) Meet(ctx context.Context, e runtime.Endpoint) (runtime.Endpoint, error) {
	return n.agents.Meet(ctx, e)
}

func (n *node) Client(e runtime.Endpoint) *client.Client { return n.agents.Client(e) }

func (n *node) Dial(ctx context.Context, e runtime.Endpoint) (net.Conn, error) {
	return n.host.Dial(ctx, n.guest(types.UID(e.UID)))
}

func (n *node) Usage(ctx context.Context, pod *corev1.Pod, _ runtime.Endpoint) (runtime.Usage, error) {
	return n.host.Stats(ctx, n.guest(pod.UID))
}
