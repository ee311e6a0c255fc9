package kube

import (
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/server"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const namespace = "sandboxes"

var (
	podKind   = corev1.SchemeGroupVersion.WithResource("pods")
	claimKind = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
)

// cluster is client-go's fake of an API server with what that leaves out and the driver counts on: UIDs, preconditions and ends that
// take their time. Its kubelet runs every pod with an agent that only takes its environment.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	agents *agents
	// kubelet is told of each pod that was made; before and after run around each write, by "verb resource", and after may give another
	// answer than the one that the write had.
	kubelet func(*corev1.Pod)
	before  map[string]func()
	after   map[string]func(error) error
	// end is told of each pod that is to end, and removes it some time.
	end func(*corev1.Pod)

	mu     sync.Mutex
	writes []string
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{
		t: t, client: fake.NewClientset(), agents: &agents{t: t, dir: t.TempDir(), all: map[types.UID]*agent{}},
		before: map[string]func(){}, after: map[string]func(error) error{},
	}
	c.kubelet = c.run
	c.end = func(p *corev1.Pod) { go c.remove(p) }
	for _, verb := range []string{"create", "delete", "patch"} {
		c.client.PrependReactor(verb, "*", c.write)
	}
	return c
}

// write does what an API server does with one.
func (c *cluster) write(a k8stesting.Action) (bool, k8sruntime.Object, error) {
	key := a.GetVerb() + " " + a.GetResource().Resource
	c.mu.Lock()
	c.writes = append(c.writes, key)
	before, after := c.before[key], c.after[key]
	delete(c.before, key)
	c.mu.Unlock()
	if before != nil {
		before()
	}
	handled, obj, err := c.apply(a)
	if after != nil {
		// As with a lost connection, nothing is told of what was written.
		if e := after(err); e != nil {
			return true, nil, e
		}
	}
	return handled, obj, err
}

func (c *cluster) apply(a k8stesting.Action) (bool, k8sruntime.Object, error) {
	tracker := c.client.Tracker()
	switch a := a.(type) {
	case k8stesting.CreateActionImpl:
		obj := a.GetObject().DeepCopyObject()
		o := obj.(metav1.Object)
		o.SetUID(types.UID(ids.New()))
		o.SetCreationTimestamp(metav1.Now())
		if err := tracker.Create(a.GetResource(), obj, a.GetNamespace(), a.CreateOptions); err != nil {
			return true, nil, err
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			c.kubelet(pod.DeepCopy())
		}
		return true, obj, nil
	case k8stesting.DeleteActionImpl:
		obj, err := tracker.Get(a.GetResource(), a.GetNamespace(), a.GetName())
		if err != nil {
			return true, nil, err
		}
		if p := a.DeleteOptions.Preconditions; p == nil || *p.UID != obj.(metav1.Object).GetUID() {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(), errors.New("the UID in the precondition does not match"))
		}
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return true, nil, tracker.Delete(a.GetResource(), a.GetNamespace(), a.GetName())
		}
		pod = pod.DeepCopy()
		pod.DeletionTimestamp = new(metav1.Now())
		if err := tracker.Update(podKind, pod, namespace); err != nil {
			return true, nil, err
		}
		c.end(pod)
		return true, nil, nil
	}
	return false, nil, nil
}

// run makes a pod run and its agent answer.
func (c *cluster) run(pod *corev1.Pod) {
	c.agents.start(pod, nil)
	go c.status(pod, func(p *corev1.Pod) {
		p.Spec.NodeName = "node"
		p.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.1.2.3", StartTime: new(metav1.Now()),
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: manifest.Container, ImageID: "docker.io/library/python@sha256:abc", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		}
	})
}

// status changes a pod unless it is gone or another one has its name.
func (c *cluster) status(pod *corev1.Pod, change func(*corev1.Pod)) {
	obj, err := c.client.Tracker().Get(podKind, namespace, pod.Name)
	if err != nil || obj.(*corev1.Pod).UID != pod.UID {
		return
	}
	p := obj.(*corev1.Pod).DeepCopy()
	change(p)
	_ = c.client.Tracker().Update(podKind, p, namespace) // it may have gone meanwhile
}

// remove takes a pod away, as a kubelet does once its programs have ended.
func (c *cluster) remove(pod *corev1.Pod) {
	_ = c.client.Tracker().Delete(podKind, namespace, pod.Name) // it may be gone
}

// put writes an object past the driver.
func (c *cluster) put(obj k8sruntime.Object) {
	kind := podKind
	if _, ok := obj.(*corev1.PersistentVolumeClaim); ok {
		kind = claimKind
	}
	o := obj.(metav1.Object)
	o.SetUID(types.UID(ids.New()))
	o.SetCreationTimestamp(metav1.Now())
	require.NoError(c.t, c.client.Tracker().Create(kind, obj, namespace))
}

// took are the writes since the last call.
func (c *cluster) took() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.writes = nil }()
	return slices.Sorted(slices.Values(c.writes))
}

func (c *cluster) pods() map[string]corev1.Pod {
	list, err := c.client.Tracker().List(podKind, corev1.SchemeGroupVersion.WithKind("Pod"), namespace)
	require.NoError(c.t, err)
	all := map[string]corev1.Pod{}
	for _, p := range list.(*corev1.PodList).Items {
		all[p.Name] = p
	}
	return all
}

func (c *cluster) claims() map[string]corev1.PersistentVolumeClaim {
	list, err := c.client.Tracker().List(claimKind, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), namespace)
	require.NoError(c.t, err)
	all := map[string]corev1.PersistentVolumeClaim{}
	for _, p := range list.(*corev1.PersistentVolumeClaimList).Items {
		all[p.Name] = p
	}
	return all
}

func config() manifest.Config {
	return manifest.Config{Namespace: namespace, ClientCA: testCA, Toolbox: manifest.Toolbox{Image: "registry.example/toolbox:1"}}
}

// driver is a replica on the cluster.
func (c *cluster) driver(change ...func(*Options)) *Driver {
	o := Options{Client: c.client, Config: config(), Worker: "east", Agents: c.agents, Meter: meter{}}
	for _, f := range change {
		f(&o)
	}
	d, err := New(c.t.Context(), o)
	require.NoError(c.t, err)
	c.t.Cleanup(d.Close)
	c.took()
	return d
}

// annotate gives a claim another delete-after, as somebody with kubectl does.
func (c *cluster) annotate(claim, after string) {
	obj, err := c.client.Tracker().Get(claimKind, namespace, claim)
	require.NoError(c.t, err)
	changed := obj.(*corev1.PersistentVolumeClaim).DeepCopy()
	changed.Annotations[manifest.AnnotationDeleteAfter] = after
	require.NoError(c.t, c.client.Tracker().Update(claimKind, changed, namespace))
}

func limit(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

func spec() runtime.Spec {
	return runtime.Spec{
		ID: ids.New(), Tenant: "acme", Image: "python:3", MountPath: "/workspace", Env: map[string]string{"TOKEN": "canary"},
		WorkspaceBytes: 1 << 30, CPUMillis: 500, MemoryBytes: 256 << 20,
	}
}

// foreign is what another sandbox has under the names of this one.
func foreign(s runtime.Spec, attempt int) (*corev1.Pod, *corev1.PersistentVolumeClaim) {
	other := s
	other.ID = s.ID[:8] + ids.New()[8:]
	name := manifest.ClaimName(s.ID, attempt)
	c := config().WithDefaults()
	return manifest.Pod(c, "east", manifest.PodName(s.ID, attempt), name, other), manifest.Claim(c, "east", name, other)
}

type meter struct{}

func (meter) Usage(context.Context, *corev1.Pod, runtime.Endpoint) (runtime.Usage, error) {
	return runtime.Usage{CPUMillis: 7, MemoryBytes: 8}, nil
}

// agents are those of all pods that run.
type agents struct {
	t   *testing.T
	dir string
	mu  sync.Mutex
	all map[types.UID]*agent
}

// agent takes its environment once.
type agent struct {
	server.Handler
	socket string
	mu     sync.Mutex
	taken  *toolboxv1.Configure
	// begin is what it does with its environment, once.
	begin func(*toolboxv1.Configure) error
	// asked, where it is set, gets a value with each Hello, which is answered when held is closed.
	asked, held chan struct{}
}

func (a *agent) Configure(_ context.Context, r *toolboxv1.Configure) (*toolboxv1.ConfigureReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken != nil && (a.taken.SandboxId != r.SandboxId || !maps.Equal(a.taken.Env, r.Env)) {
		return nil, wire.NewError("failed_precondition", "illegal_state", "it has another environment")
	}
	if a.taken == nil && a.begin != nil {
		if err := a.begin(r); err != nil {
			return nil, err
		}
	}
	a.taken = r
	return &toolboxv1.ConfigureReply{}, nil
}

func (a *agent) Hello(context.Context, *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	a.mu.Lock()
	asked, held := a.asked, a.held
	a.mu.Unlock()
	if asked != nil {
		asked <- struct{}{}
		<-held
	}
	return &toolboxv1.HelloReply{Alive: true}, nil
}

func (a *agent) Shutdown(context.Context, *toolboxv1.Shutdown) (*toolboxv1.ShutdownReply, error) {
	return &toolboxv1.ShutdownReply{}, nil
}

func (a *agents) start(pod *corev1.Pod, begin func(*toolboxv1.Configure) error) {
	one := &agent{begin: begin, socket: filepath.Join(a.dir, strings.ReplaceAll(string(pod.UID), "-", "")[:16])}
	l, err := net.Listen("unix", one.socket)
	require.NoError(a.t, err)
	ctx, stop := context.WithCancel(context.Background())
	a.t.Cleanup(stop)
	go func() { _ = server.Serve(ctx, l, one, server.WithDrain(0)) }()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all[pod.UID] = one
}

func (a *agents) of(uid string) *agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[types.UID(uid)]
}

// Meet gives each agent a key of its own.
func (a *agents) Meet(ctx context.Context, e runtime.Endpoint) (runtime.Endpoint, error) {
	_, err := a.Client(e).Hello(ctx, &toolboxv1.Hello{})
	e.KeySHA256 = []byte("key of " + e.UID)
	return e, err
}

func (a *agents) Client(e runtime.Endpoint) *client.Client {
	return client.New(func(ctx context.Context) (net.Conn, error) { return a.Dial(ctx, e) }, "")
}

func (a *agents) Dial(ctx context.Context, e runtime.Endpoint) (net.Conn, error) {
	one := a.of(e.UID)
	if one == nil {
		return nil, errors.New("no agent of this pod")
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", one.socket)
}

// testCA is a certificate that nobody signs with.
const testCA = `-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIULnHmSqCKuJGN6ruz/AitDjAQSmswCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMzAwMzAxMDFaGA8yMTI2MTEwNjAzMDEw
MVowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABE9b
NFM9Xh5/ZzwRUfqpcoqapcbM3teDD2Q6FlILDXdt8c14LqHd1UCRSEg1yJRzuioW
W4+XUUXesf6YfGvGKzmjUzBRMB0GA1UdDgQWBBSynuMBasspjrHFk2+5no7QZeXe
7zAfBgNVHSMEGDAWgBSynuMBasspjrHFk2+5no7QZeXe7zAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIFoXHm9ZGYU+5kB2vOCPuJA6Ce4mUizDDCQl
WqmG1g1IAiEAzpQ0D2HNlVVRATsKwbjzrI+EK/yCVzFXgBATMCMg4Go=
-----END CERTIFICATE-----`
