package kube

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

// Create makes the sandbox, or finishes what an earlier call or another replica has begun. Claim and pod are written at the same time
// and each once; everything else is read from the watches. When it fails, nothing but the workspace is left.
func (d *Driver) Create(ctx context.Context, s runtime.Spec) (runtime.Created, error) {
	if err := checkID(s.ID); err != nil {
		return runtime.Created{}, err
	}
	s, err := manifest.Check(d.o.Config, s)
	if err != nil {
		return runtime.Created{}, err
	}
	unlock, err := d.locks.lock(ctx, s.ID)
	if err != nil {
		return runtime.Created{}, err
	}
	defer unlock()
	b := &birth{d: d, spec: s, began: time.Now()}
	created, err := b.run(ctx)
	if err == nil {
		return created, nil
	}
	// The caller's time may be over; what was started is removed all the same.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if e := d.removePods(after, s.ID, b.tried); e != nil {
		d.o.Log.Error("a failed start left its pod behind; the next create or destroy removes it", "sandbox", s.ID, "error", e)
	}
	return runtime.Created{}, err
}

// birth is one call of Create.
type birth struct {
	d     *Driver
	spec  runtime.Spec
	began time.Time
	// tried are the names under which there may be a pod of the sandbox that the watch does not show yet.
	tried []string
	// marks are when what was waited for was seen, in order.
	marks []mark
	// asked is when the cluster itself was last asked for the pod; shown, whether the watch has shown it since.
	asked time.Time
	shown bool
}

type mark struct {
	name string
	at   time.Time
}

// mark notes the first time of something.
func (b *birth) mark(name string) {
	for _, m := range b.marks {
		if m.name == name {
			return
		}
	}
	b.marks = append(b.marks, mark{name, time.Now()})
}

// phases are the times from each mark to the next.
func (b *birth) phases() (all []runtime.Phase) {
	last := b.began
	for _, m := range b.marks {
		all = append(all, runtime.Phase{Name: m.name, Took: m.at.Sub(last)})
		last = m.at
	}
	return all
}

func (b *birth) run(ctx context.Context) (runtime.Created, error) {
	claim, err := b.claim(ctx)
	if err != nil {
		return runtime.Created{}, err
	}
	pod, err := b.found(ctx, claim)
	if err != nil {
		return runtime.Created{}, err
	}
	if pod != nil && claim == nil {
		if pod, err = b.complete(ctx, pod); err != nil {
			return runtime.Created{}, err
		}
	}
	if pod == nil {
		if pod, err = b.write(ctx, claim); err != nil {
			return runtime.Created{}, err
		}
		b.mark("written")
	}
	return b.await(ctx, pod)
}

// claim finds the workspace that the sandbox has already; nil where it has none. It is no longer to be deleted: a mark of an earlier
// end goes first.
func (b *birth) claim(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	c := b.d.seen.claim(b.spec.ID)
	if c == nil {
		return nil, nil
	}
	return c, b.d.keep(ctx, c)
}

// keep takes the mark of a claim's end away.
func (d *Driver) keep(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	if c.DeletionTimestamp != nil {
		return fault.New(fault.Unavailable, fault.ReasonConflict, "the sandbox's workspace is being deleted").WithRetry(time.Second)
	}
	if !marked(c) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": c.UID, "annotations": map[string]any{manifest.AnnotationDeleteAfter: nil},
	}})
	if err != nil {
		return err
	}
	err = d.retry(ctx, func(ctx context.Context) error {
		_, err := d.o.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: Owner})
		return err
	})
	if err != nil {
		return err
	}
	return d.seen.settle(ctx, c, func(now *corev1.PersistentVolumeClaim) bool { return !marked(now) })
}

// found gives the pod that an earlier call left half made, if it is what would be made now. Any other one of the sandbox is removed.
func (b *birth) found(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	var fit *corev1.Pod
	for _, pod := range b.d.seen.podsOf(b.spec.ID) {
		if fit == nil && b.fits(pod, claim) {
			fit = pod
			continue
		}
		if err := b.d.remove(ctx, pod); err != nil {
			return nil, err
		}
	}
	return fit, nil
}

// complete makes the claim of a pod whose writer came no further. Where the claim's name is another's, the pod goes and nil is returned.
func (b *birth) complete(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	err := b.makeClaim(ctx, claimOf(pod))
	if errors.Is(err, errTaken) {
		return nil, b.d.remove(ctx, pod)
	}
	return pod, err
}

// makeClaim makes the claim or finds it, and sees to it that it stays.
func (b *birth) makeClaim(ctx context.Context, name string) error {
	claim, err := b.d.makeClaim(ctx, b.spec.ID, manifest.Claim(b.d.o.Config, b.d.o.Worker, name, b.spec))
	if err != nil {
		return err
	}
	return b.d.keep(ctx, claim)
}

func (b *birth) fits(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.DeletionTimestamp != nil || ended(pod) {
		return false
	}
	mounted := claimOf(pod)
	if claim != nil && claim.Name != mounted {
		return false
	}
	want := b.pod(pod.Name, mounted)
	return pod.Annotations[manifest.AnnotationSpec] == want.Annotations[manifest.AnnotationSpec]
}

func (b *birth) pod(name, claim string) *corev1.Pod {
	return manifest.Pod(b.d.o.Config, b.d.o.Worker, name, claim, b.spec)
}

// claimOf is the name of the claim that a pod mounts.
func claimOf(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// write makes the pod and, where there is none, the claim, under the first pair of names that is free. A pod whose claim turned out to be
// another sandbox's is removed before the next name is tried; it saw nothing of that claim but an empty directory of its own.
func (b *birth) write(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	have := ""
	if claim != nil {
		have = claim.Name
	}
	for attempt := range manifest.MaxNames {
		name, mounted := manifest.PodName(b.spec.ID, attempt), have
		if mounted == "" {
			mounted = manifest.ClaimName(b.spec.ID, attempt)
		}
		if b.taken(name, mounted) {
			continue
		}
		pod, podErr, claimErr := b.pair(ctx, name, mounted, have != "")
		if claimErr == nil {
			have = mounted
		}
		for _, err := range []error{claimErr, podErr} {
			if err != nil && !errors.Is(err, errTaken) {
				return nil, err
			}
		}
		switch {
		case podErr == nil && claimErr == nil:
			return pod, nil
		case podErr == nil:
			if err := b.d.remove(ctx, pod); err != nil {
				return nil, err
			}
		}
		b.d.o.Log.Info("a name is taken by another sandbox; trying the next", "sandbox", b.spec.ID, "pod", name)
	}
	return nil, fault.New(fault.Unavailable, fault.ReasonConflict, "every name that the sandbox may have is taken in the cluster").WithRetry(10 * time.Second)
}

// taken reports what the watches know already, so that mostly nothing is written under a name that is another's.
func (b *birth) taken(pod, claim string) bool {
	p := b.d.seen.pod(pod)
	c := named[*corev1.PersistentVolumeClaim](b.d.seen.claims, b.d.seen.namespace, claim)
	return p != nil && !isOf(p, b.spec.ID) || c != nil && !isOf(c, b.spec.ID)
}

// pair writes a pod and its claim side by side.
func (b *birth) pair(ctx context.Context, name, mounted string, have bool) (pod *corev1.Pod, podErr, claimErr error) {
	b.tried = append(b.tried, name)
	var side sync.WaitGroup
	if !have {
		side.Go(func() { claimErr = b.makeClaim(ctx, mounted) })
	}
	pod, podErr = b.d.makePod(ctx, b.spec.ID, b.pod(name, mounted))
	side.Wait()
	if podErr == nil && pod.DeletionTimestamp != nil {
		podErr = fault.New(fault.Unavailable, fault.ReasonConflict, "an earlier pod of the sandbox is still ending").WithRetry(time.Second)
	}
	return pod, podErr, claimErr
}
