package kube

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// current is the pod that stands for a sandbox; nil where there is none.
func (d *Driver) current(id string) *corev1.Pod {
	pods := d.seen.podsOf(id)
	if len(pods) == 0 {
		return nil
	}
	// One that runs before what is left of earlier ones.
	if i := slices.IndexFunc(pods, running); i >= 0 {
		return pods[i]
	}
	return pods[len(pods)-1]
}

// status is what the watches show of a pod, without asking its agent.
func (d *Driver) status(pod *corev1.Pod) runtime.Status {
	st := runtime.Status{ID: idOf(pod), Tenant: tenantOf(pod), Exists: true, Alive: running(pod)}
	if d.seen.another(pod) {
		st.Alive, st.Reason = false, string(fault.ReasonSandboxLost)
		st.Message = "its pod is gone, and another one has its name"
		return st
	}
	if found := d.diagnose(pod, false); !st.Alive || found.Over {
		st.Alive, st.Reason, st.Message = false, string(found.Reason), found.Message
	}
	return st
}

// Inspect asks the agent where the pod runs. One that does not answer is an error, since nothing is known then.
func (d *Driver) Inspect(ctx context.Context, id string) (runtime.Status, error) {
	if err := checkID(id); err != nil {
		return runtime.Status{}, err
	}
	pod := d.current(id)
	if pod == nil {
		return runtime.Status{ID: id}, nil
	}
	st := d.status(pod)
	e := d.endpoint(pod)
	if !st.Alive || e == nil {
		return st, nil
	}
	err := d.hello(ctx, pod, *e)
	if err == nil {
		return st, nil
	}
	if now := d.current(id); now == nil {
		return runtime.Status{ID: id}, nil
	} else if st = d.status(now); !st.Alive {
		return st, nil
	}
	st.Alive = false
	return st, silent(err)
}

// hello asks the agent of a pod. A pod that ends meanwhile takes its address with it, and nobody would refuse: once the watch shows the end, nothing is waited for.
func (d *Driver) hello(ctx context.Context, pod *corev1.Pod, e runtime.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	id := idOf(pod)
	changes, stop := d.seen.changes(id)
	defer stop()
	answered := make(chan error, 1)
	go func() {
		_, err := d.o.Agents.Client(e).Hello(ctx, &toolboxv1.Hello{})
		answered <- err
	}()
	for {
		if now := d.current(id); now == nil || now.UID != pod.UID || !running(now) {
			return errReplaced
		}
		select {
		case err := <-answered:
			return err
		case <-changes:
		}
	}
}

// List gives the sandboxes of which a pod is left, as the watch shows them: nothing is asked of the cluster or of an agent.
func (d *Driver) List(context.Context) ([]runtime.Status, error) {
	var all []runtime.Status
	for id := range sandboxesOf(d.seen.allPods()) {
		if pod := d.current(id); pod != nil {
			all = append(all, d.status(pod))
		}
	}
	slices.SortFunc(all, func(a, b runtime.Status) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// Workspaces gives the ids of the sandboxes that have a claim, but for one that is being deleted.
func (d *Driver) Workspaces(context.Context) ([]string, error) {
	var all []string
	for id := range sandboxesOf(d.seen.allClaims()) {
		if c := d.seen.claim(id); c != nil && c.DeletionTimestamp == nil {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all, nil
}

// sandboxesOf are the ids that objects bear.
func sandboxesOf(objects []any) map[string]struct{} {
	all := map[string]struct{}{}
	for _, obj := range objects {
		if o, ok := obj.(metav1.Object); ok {
			all[idOf(o)] = struct{}{}
		}
	}
	return all
}

// Dial connects to the agent.
func (d *Driver) Dial(ctx context.Context, id string) (net.Conn, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	pod := d.current(id)
	if pod == nil || d.seen.another(pod) {
		return nil, noSandbox()
	}
	e := d.endpoint(pod)
	if e == nil || !running(pod) {
		return nil, silent(nil)
	}
	conn, err := d.o.Agents.Dial(ctx, *e)
	if err != nil {
		return nil, silent(err)
	}
	return conn, nil
}

// Stats measures a sandbox from outside of it.
func (d *Driver) Stats(ctx context.Context, id string) (runtime.Usage, error) {
	if err := checkID(id); err != nil {
		return runtime.Usage{}, err
	}
	pod := d.current(id)
	if pod == nil {
		return runtime.Usage{}, noSandbox()
	}
	return d.measure(ctx, pod)
}

func (d *Driver) measure(ctx context.Context, pod *corev1.Pod) (runtime.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	at := d.endpoint(pod)
	if at == nil {
		return runtime.Usage{}, silent(nil)
	}
	used, err := d.o.Meter.Usage(ctx, pod, *at)
	if err != nil {
		return runtime.Usage{}, fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the sandbox's usage cannot be measured now").WithRetry(time.Second).Because(err)
	}
	if used.Uptime == 0 && pod.Status.StartTime != nil {
		used.Uptime = d.o.Now().Sub(pod.Status.StartTime.Time)
	}
	return used, nil
}
