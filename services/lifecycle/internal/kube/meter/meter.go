// Package meter measures pods from outside of them, by what the kubelets say. Nothing in a pod takes part in it.
//
// One answer of a kubelet has all pods of its node, so one request serves them all, and for a while.
package meter

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandtrail/sandtrail/libs/runtime"
)

// Method is the name of this way of measuring.
const Method = "kubelet"

const (
	// fresh is how long an answer is good for. A kubelet looks itself only every 10 to 15 s, so asking more often tells no more.
	fresh = 5 * time.Second
	// keep is how long peak and mean of a pod are remembered that nobody asks for any more.
	keep = time.Hour
)

// Source asks the kubelet of a pod's node.
type Source interface {
	// Summary gives the answer to GET /stats/summary.
	Summary(ctx context.Context, pod *corev1.Pod) ([]byte, error)
}

// Meter measures pods.
type Meter struct {
	source Source
	now    func() time.Time

	mu    sync.Mutex
	nodes map[string]*node
}

// node is what one kubelet has told.
type node struct {
	// mu is held while it is asked, so that many askers make one request.
	mu   sync.Mutex
	at   time.Time
	pods map[types.UID]*figures
}

// figures of a pod over all answers so far.
type figures struct {
	last podStats
	// seen is when the last answer came that had it.
	seen time.Time
	// peak and the sum for the mean, in bytes and byte seconds, of what stands in answers.
	peak, now uint64
	weight    float64
	sum       float64
	measured  time.Time
}

// New makes a meter. now is the clock of the mean; nil is this machine's.
func New(source Source, now func() time.Time) *Meter {
	if now == nil {
		now = time.Now
	}
	return &Meter{source: source, now: now, nodes: map[string]*node{}}
}

// podStats is what this package reads of a pod in a kubelet's summary. Figures that a kubelet does not have are nil.
type podStats struct {
	Ref struct {
		Name, Namespace string
		UID             types.UID
	} `json:"podRef"`
	StartTime time.Time
	CPU       struct {
		Nanos *uint64 `json:"usageCoreNanoSeconds"`
	}
	Memory struct {
		Time       time.Time
		WorkingSet *uint64 `json:"workingSetBytes"`
	}
	Network struct {
		Received *uint64 `json:"rxBytes"`
		Sent     *uint64 `json:"txBytes"`
	}
}

type summary struct {
	Pods []podStats
}

// Usage of a pod since its start, at most some seconds behind what its kubelet knows, which is up to 15 s behind the pod. The peak is
// the highest of the answers that this process has seen. An error: the kubelet does not answer, or does not know the pod, as for the
// first seconds of its life. The agent in the pod, which answers at the endpoint, has no say in it.
func (m *Meter) Usage(ctx context.Context, pod *corev1.Pod, _ runtime.Endpoint) (runtime.Usage, error) {
	if pod.Spec.NodeName == "" {
		return runtime.Usage{}, fmt.Errorf("pod %s has no node", pod.Name)
	}
	n := m.node(pod.Spec.NodeName)
	n.mu.Lock()
	defer n.mu.Unlock()
	now := m.now()
	if f, ok := n.pods[pod.UID]; !ok || f.seen != n.at || now.Sub(n.at) >= fresh || now.Before(n.at) {
		if err := m.ask(ctx, n, pod); err != nil {
			return runtime.Usage{}, err
		}
	}
	f, ok := n.pods[pod.UID]
	if !ok || f.seen != n.at {
		return runtime.Usage{}, fmt.Errorf("the kubelet of %s does not know pod %s yet", pod.Spec.NodeName, pod.Name)
	}
	return f.usage(m.now()), nil
}

func (m *Meter) node(name string) *node {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for other, n := range m.nodes {
		// A node that is being asked is in use.
		if other != name && n.mu.TryLock() {
			if now.Sub(n.at) > keep {
				delete(m.nodes, other)
			}
			n.mu.Unlock()
		}
	}
	n := m.nodes[name]
	if n == nil {
		n = &node{at: now.Add(-fresh), pods: map[types.UID]*figures{}}
		m.nodes[name] = n
	}
	return n
}

func (m *Meter) ask(ctx context.Context, n *node, pod *corev1.Pod) error {
	data, err := m.source.Summary(ctx, pod)
	if err != nil {
		return fmt.Errorf("ask the kubelet of %s: %w", pod.Spec.NodeName, err)
	}
	var s summary
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read the answer of the kubelet of %s: %w", pod.Spec.NodeName, err)
	}
	n.at = m.now()
	for _, p := range s.Pods {
		// Others' pods are none of ours, and a node may have hundreds.
		if p.Ref.Namespace != pod.Namespace {
			continue
		}
		f := n.pods[p.Ref.UID]
		if f == nil {
			f = &figures{}
			n.pods[p.Ref.UID] = f
		}
		f.add(p, n.at)
	}
	for uid, f := range n.pods {
		if n.at.Sub(f.seen) > keep {
			delete(n.pods, uid)
		}
	}
	return nil
}

// add takes in one answer. A kubelet repeats what it knew until it has looked again.
func (f *figures) add(p podStats, at time.Time) {
	f.seen = at
	if p.CPU.Nanos == nil && f.last.CPU.Nanos != nil {
		// A container that is going has no figures any more; the last ones stand.
		p.CPU, p.Memory, p.Network = f.last.CPU, f.last.Memory, f.last.Network
	}
	f.last = p
	if p.Memory.WorkingSet == nil || !p.Memory.Time.After(f.measured) {
		return
	}
	was := f.measured
	if was.IsZero() {
		was = p.StartTime
	}
	f.now, f.measured = *p.Memory.WorkingSet, p.Memory.Time
	f.peak = max(f.peak, f.now)
	if d := f.measured.Sub(was).Seconds(); d > 0 && !was.IsZero() {
		f.weight += d
		f.sum += d * float64(f.now)
	}
}

func (f *figures) usage(now time.Time) runtime.Usage {
	u := runtime.Usage{
		MemoryBytes: f.now, MemoryPeakBytes: f.peak, MemoryAvgBytes: f.now, Method: Method,
		NetworkIngressBytes: value(f.last.Network.Received), NetworkEgressBytes: value(f.last.Network.Sent),
		CPUMillis: value(f.last.CPU.Nanos) / uint64(time.Millisecond),
	}
	if f.weight > 0 {
		u.MemoryAvgBytes = uint64(f.sum / f.weight)
	}
	if !f.last.StartTime.IsZero() {
		u.Uptime = max(0, now.Sub(f.last.StartTime))
	}
	return u
}

func value(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}
