package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

const (
	// graceMillis is how long programs have between TERM and KILL.
	graceMillis     = 2000
	shutdownTimeout = 6 * time.Second
)

// stillThere is between two looks at the cluster itself for what the watch no longer shows or never showed.
const stillThere = 250 * time.Millisecond

// Destroy ends the pod and returns once the cluster has it no more, which it says only when nothing of it runs. Its workspace stays and
// is marked with the time from which it may be removed. An error means that something may be left, and the call has to be repeated.
func (d *Driver) Destroy(ctx context.Context, id string) (runtime.Usage, error) {
	if err := checkID(id); err != nil {
		return runtime.Usage{}, err
	}
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return runtime.Usage{}, err
	}
	defer unlock()
	var used runtime.Usage
	for _, pod := range d.seen.podsOf(id) {
		if !running(pod) {
			continue
		}
		if u, err := d.measure(ctx, pod); err == nil {
			used = u
		}
		used = withFloor(used, d.shutdown(ctx, pod), pod, d.o.Now())
	}
	// The watch may be too late for a pod that another replica has just made.
	if err := d.removePods(ctx, id, []string{manifest.PodName(id, 0)}); err != nil {
		return runtime.Usage{}, err
	}
	d.seen.forget(id)
	return used, d.markClaim(ctx, id)
}

// shutdown lets the agent end the programs in order, and with them the pod. A program can send it every signal that a kubelet can, so
// signals mean nothing to it. What goes wrong here the kubelet puts right; then nil is returned.
func (d *Driver) shutdown(ctx context.Context, pod *corev1.Pod) *toolboxv1.ShutdownReply {
	e := d.endpoint(pod)
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	reply, err := d.o.Agents.Client(*e).Shutdown(ctx, &toolboxv1.Shutdown{GraceMs: graceMillis})
	if err != nil {
		d.o.Log.Info("the agent does not answer; the node ends its sandbox", "sandbox", idOf(pod), "error", err)
		return nil
	}
	return reply
}

// removePods ends the pods of a sandbox: those that the watch shows, and those under names where it may be late.
func (d *Driver) removePods(ctx context.Context, id string, names []string) error {
	pods := d.seen.podsOf(id)
	for _, name := range names {
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == name }) {
			continue
		}
		live, err := d.livePod(ctx, name)
		if err != nil {
			return err
		}
		if live != nil && isOf(live, id) {
			pods = append(pods, live)
		}
	}
	for _, pod := range pods {
		if err := d.remove(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// remove ends one pod and waits until both the cluster and the watch have it no more. The kubelet has its grace to end the programs and
// is never passed by: a pod that is forced out of the cluster may go on running on its node.
func (d *Driver) remove(ctx context.Context, pod *corev1.Pod) error {
	changes, stop := d.seen.changes(idOf(pod))
	defer stop()
	if pod.DeletionTimestamp == nil {
		if err := d.deletePod(ctx, pod); err != nil {
			return err
		}
	}
	for {
		if shown := d.seen.pod(pod.Name); shown == nil || shown.UID != pod.UID {
			live, err := d.livePod(ctx, pod.Name)
			if err != nil {
				return err
			}
			if live == nil || live.UID != pod.UID {
				return nil
			}
		}
		look := time.NewTimer(stillThere)
		select {
		case <-changes:
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			return fault.New(fault.Unavailable, fault.ReasonRuntimeFailed, "the sandbox's pod is still ending; its node may not answer").
				WithRetry(time.Second).Because(ctx.Err())
		}
		look.Stop()
	}
}

// markClaim writes from when on the workspace may be removed. The first mark stays: an end that is repeated does not put it off.
func (d *Driver) markClaim(ctx context.Context, id string) error {
	c := d.seen.claim(id)
	if c == nil || c.DeletionTimestamp != nil || marked(c) {
		return nil
	}
	after := d.o.Now().Add(d.o.KeepWorkspace).UTC().Format(time.RFC3339)
	mark := coreapply.PersistentVolumeClaim(c.Name, c.Namespace).WithUID(c.UID).WithAnnotations(map[string]string{manifest.AnnotationDeleteAfter: after})
	err := d.retry(ctx, func(ctx context.Context) error {
		_, err := d.o.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Apply(ctx, mark, metav1.ApplyOptions{FieldManager: Owner, Force: true})
		if gone(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return d.seen.settle(ctx, c, marked)
}

// marked: from some time on the workspace may be removed.
func marked(c *corev1.PersistentVolumeClaim) bool {
	return c.Annotations[manifest.AnnotationDeleteAfter] != ""
}

// DeleteAfter is the mark of a sandbox's claim as the cluster has it now: whoever may change claims can put the end off.
func (d *Driver) DeleteAfter(ctx context.Context, id string) (after time.Time, err error) {
	if err := checkID(id); err != nil {
		return after, err
	}
	name := manifest.ClaimName(id, 0)
	if c := d.seen.claim(id); c != nil {
		name = c.Name
	}
	claim, err := d.liveClaim(ctx, name, id)
	if claim == nil || err != nil || !marked(claim) {
		return after, err
	}
	after, err = time.Parse(time.RFC3339, claim.Annotations[manifest.AnnotationDeleteAfter])
	if err != nil {
		return after, fmt.Errorf("annotation %s of claim %s is no time: %w", manifest.AnnotationDeleteAfter, name, err)
	}
	return after, nil
}

// DeleteWorkspace removes the claim of a sandbox that has no pod, and returns once the cluster has it no more.
func (d *Driver) DeleteWorkspace(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	claim, err := d.findClaim(ctx, id)
	if claim == nil || err != nil {
		return err
	}
	if err := d.unused(ctx, id); err != nil {
		return err
	}
	changes, stop := d.seen.changes(id)
	defer stop()
	claims := d.o.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	err = d.retry(ctx, func(ctx context.Context) error {
		err := claims.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
		if gone(err) {
			return nil
		}
		return err
	})
	for err == nil {
		if c := d.seen.claim(id); c == nil || c.UID != claim.UID {
			return nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			err = fault.New(fault.Unavailable, fault.ReasonRuntimeFailed, "the sandbox's workspace is still being removed").WithRetry(time.Second).Because(ctx.Err())
		}
	}
	return err
}

// findClaim looks into the watch, and where that shows none at the cluster itself.
func (d *Driver) findClaim(ctx context.Context, id string) (*corev1.PersistentVolumeClaim, error) {
	if c := d.seen.claim(id); c != nil {
		return c, nil
	}
	return d.liveClaim(ctx, manifest.ClaimName(id, 0), id)
}

// liveClaim asks the cluster for a claim by its name; nil where there is none, or it is another sandbox's.
func (d *Driver) liveClaim(ctx context.Context, name, id string) (claim *corev1.PersistentVolumeClaim, err error) {
	err = d.retry(ctx, func(ctx context.Context) error {
		claim, err = d.o.Client.CoreV1().PersistentVolumeClaims(d.o.Config.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			claim, err = nil, nil
		}
		return err
	})
	if err != nil || claim == nil || !isOf(claim, id) {
		return nil, err
	}
	return claim, nil
}

// unused refuses while a pod of the sandbox is there, also one that the watch does not show yet. The cluster itself lets no claim go that
// a pod has mounted.
func (d *Driver) unused(ctx context.Context, id string) error {
	there := len(d.seen.podsOf(id)) > 0
	if !there {
		live, err := d.livePod(ctx, manifest.PodName(id, 0))
		if err != nil {
			return err
		}
		there = live != nil && isOf(live, id)
	}
	if there {
		return fault.New(fault.Conflict, fault.ReasonIllegalState, "the sandbox of this workspace still exists: destroy it first")
	}
	return nil
}
