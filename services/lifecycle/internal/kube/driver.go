// Package kube is the runtime driver for a Kubernetes cluster: each sandbox is a pod that runs under gVisor, with a claim for its
// workspace and an agent inside. Nothing of a sandbox is in this process's memory alone: after a restart, or in another replica, the
// driver finds everything by its labels.
//
// Who a pod is for says its label with the whole id, never its name; which pod it is says its UID. Whatever is written first is a
// creation, which the cluster refuses where the name is taken, so no two callers and no two sandboxes ever have one object.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	networkingapply "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/diagnosis"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// Owner is the field owner of everything that the driver writes.
const Owner = "sandtrail-lifecycle"

// Agents reaches the toolbox in pods.
type Agents interface {
	// Meet returns once the agent of exactly this pod answers, with the endpoint and the agent's key.
	Meet(context.Context, runtime.Endpoint) (runtime.Endpoint, error)
	// Client calls the agent of exactly the pod that the endpoint names; another one refuses.
	Client(runtime.Endpoint) *client.Client
	// Dial connects to it.
	Dial(context.Context, runtime.Endpoint) (net.Conn, error)
}

// Meter measures pods from outside of them.
type Meter interface {
	// Usage of a pod since its start; Uptime may be left at zero. The endpoint is where its agent answers.
	Usage(context.Context, *corev1.Pod, runtime.Endpoint) (runtime.Usage, error)
}

// Options of a Driver. Client, Config, Worker, Agents and Meter are required.
type Options struct {
	Client kubernetes.Interface
	Config manifest.Config
	// Worker is the cluster's name in placements. The driver sees only what has it in its labels.
	Worker string
	Agents Agents
	Meter  Meter
	// KeepWorkspace is how long the workspace of a destroyed sandbox is not to be removed; default 24 h.
	KeepWorkspace time.Duration
	Now           func() time.Time
	Log           *slog.Logger
}

// What the driver waits for, at most.
const (
	// writeTimeout bounds one write. A caller that gives up meanwhile waits for its outcome, so that it is known.
	writeTimeout = 10 * time.Second
	helloTimeout = 3 * time.Second
	syncTimeout  = 60 * time.Second
	// cleanTimeout bounds the removal of a start that failed.
	cleanTimeout = 30 * time.Second
)

// Driver implements runtime.Driver.
type Driver struct {
	o     Options
	seen  *seen
	locks locks
	stop  context.CancelFunc
}

var (
	_ runtime.Driver = (*Driver)(nil)
	_ runtime.Dated  = (*Driver)(nil)
)

// New cuts the sandboxes' namespace off by its network policy, begins to watch it, and returns once everything in it is known.
func New(ctx context.Context, o Options) (*Driver, error) {
	o.Config = o.Config.WithDefaults()
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("configuration of the cluster: %w", err)
	}
	set(&o.KeepWorkspace, 24*time.Hour)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{o: o, locks: locks{held: map[string]chan struct{}{}}}
	if err := d.ensurePolicy(ctx); err != nil {
		return nil, fmt.Errorf("ensure the network policy of namespace %s: %w", o.Config.Namespace, err)
	}
	watched, stop := context.WithCancel(context.Background())
	d.stop = stop
	var err error
	if d.seen, err = watch(watched, o); err != nil {
		stop()
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if err := d.seen.sync(limited); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Close ends the watches. Sandboxes go on.
func (d *Driver) Close() {
	d.stop()
	if d.seen != nil {
		d.seen.wait()
	}
}

// OnChange has f called with the id of a sandbox whenever something of it has changed in the cluster; f does not block.
func (d *Driver) OnChange(f func(id string)) {
	d.seen.mu.Lock()
	defer d.seen.mu.Unlock()
	d.seen.notify = f
}

// ensurePolicy applies the policy again at each start, so that one that somebody changed is put right.
func (d *Driver) ensurePolicy(ctx context.Context) error {
	data, err := yaml.Marshal(manifest.Policy(d.o.Config))
	if err != nil {
		return err
	}
	policy := &networkingapply.NetworkPolicyApplyConfiguration{}
	if err := yaml.Unmarshal(data, policy); err != nil {
		return err
	}
	return d.retry(ctx, func(ctx context.Context) error {
		_, err := d.o.Client.NetworkingV1().NetworkPolicies(d.o.Config.Namespace).Apply(ctx, policy, metav1.ApplyOptions{FieldManager: Owner, Force: true})
		return err
	})
}

// isOf reports whether an object is a sandbox's, by its whole id.
func isOf(o metav1.Object, id string) bool { return o.GetLabels()[manifest.LabelSandbox] == id }

func idOf(o metav1.Object) string { return o.GetLabels()[manifest.LabelSandbox] }

// tenantOf is the tenant as it was given; the label may hold a digest of it.
func tenantOf(o metav1.Object) string { return o.GetAnnotations()[manifest.AnnotationTenant] }

// endpoint is where the agent of a pod answers; nil before it has an address.
func (d *Driver) endpoint(pod *corev1.Pod) *runtime.Endpoint {
	if pod.Status.PodIP == "" {
		return nil
	}
	e := runtime.Endpoint{Address: net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(d.o.Config.Port)), Runtime: pod.Name, UID: string(pod.UID)}
	if met := d.seen.metFor(idOf(pod)); met.UID == e.UID {
		e.KeySHA256 = met.KeySHA256
	}
	return &e
}

// ended: no program of the pod runs any more or will.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// running: the container that holds the agent was started and has not ended.
func running(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || ended(pod) {
		return false
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == manifest.Container {
			return s.State.Running != nil
		}
	}
	return false
}

func (d *Driver) diagnose(pod *corev1.Pod, starting bool) diagnosis.Diagnosis {
	o := diagnosis.Observed{Pod: pod, Starting: starting}
	if pod != nil {
		o.Events = d.seen.eventsOf(pod)
		o.Claim = d.seen.claim(idOf(pod))
	}
	return diagnosis.Of(o)
}

func noSandbox() error {
	return fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "there is no such sandbox on this worker")
}

func silent(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox's toolbox does not answer").WithRetry(time.Second).Because(err)
}

// over is what an ended context means, behind what is the matter with the pod where that is known.
func over(ctx context.Context, d diagnosis.Diagnosis) error {
	if f := d.Fault(); f != nil {
		return f.Because(ctx.Err())
	}
	if d.Message != "" {
		return fmt.Errorf("%s: %w", d.Message, ctx.Err())
	}
	return ctx.Err()
}

var errReplaced = errors.New("another pod has its name")
