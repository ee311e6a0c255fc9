package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cordon keeps new pods away from the node; those that run stay. Uncordon lets them come again.
func (c *Cluster) Cordon(ctx context.Context) error { return c.schedulable(ctx, false) }

// Uncordon ends Cordon and Drain.
func (c *Cluster) Uncordon(ctx context.Context) error { return c.schedulable(ctx, true) }

func (c *Cluster) schedulable(ctx context.Context, yes bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, !yes)
	_, err := c.Client.CoreV1().Nodes().Patch(ctx, NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Evict asks for the eviction of a pod, as an administrator's drain does: a disruption budget may refuse it. It returns when the pod is told to end.
func (c *Cluster) Evict(ctx context.Context, namespace, pod string) error {
	return c.Client.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}})
}

// Drain cordons the node and evicts every pod of some namespaces (all when none is named); it waits until they are gone.
func (c *Cluster) Drain(ctx context.Context, namespaces ...string) error {
	if err := c.Cordon(ctx); err != nil {
		return err
	}
	return c.until(ctx, "the node is drained", []string{APIServer}, func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + NodeName})
		if err != nil {
			return err
		}
		var left error
		for _, p := range pods.Items {
			if len(namespaces) > 0 && !slices.Contains(namespaces, p.Namespace) {
				continue
			}
			left = errors.Join(left, fmt.Errorf("%s/%s is still there", p.Namespace, p.Name))
			if p.DeletionTimestamp != nil {
				continue
			}
			if err := c.Evict(ctx, p.Namespace, p.Name); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) {
				return err
			}
		}
		return left
	})
}

// DeletePod deletes a pod behind its owner's back, and waits until it is gone. now leaves it no time to end by itself.
func (c *Cluster) DeletePod(ctx context.Context, namespace, pod string, now bool) error {
	o := metav1.DeleteOptions{}
	if now {
		var none int64
		o.GracePeriodSeconds = &none
	}
	before, err := c.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := c.Client.CoreV1().Pods(namespace).Delete(ctx, pod, o); err != nil {
		return err
	}
	return c.until(ctx, "the pod is gone", []string{APIServer}, func(ctx context.Context) error {
		p, err := c.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && p.UID != before.UID {
			return nil
		}
		return errors.Join(errors.New("it is still there"), err)
	})
}

// PodReady waits until a pod is ready, and returns it. What keeps it from that is in the error when the context ends.
func (c *Cluster) PodReady(ctx context.Context, namespace, pod string) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := c.until(ctx, "pod "+namespace+"/"+pod+" is ready", []string{APIServer}, func(ctx context.Context) error {
		p, err := c.Client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				found = p
				return nil
			}
		}
		return fmt.Errorf("%s: %s", p.Status.Phase, c.why(ctx, p))
	})
	return found, err
}

// why is what the cluster says of a pod that is not ready: its conditions, the states of its containers, its events.
func (c *Cluster) why(ctx context.Context, p *corev1.Pod) string {
	said := ""
	for _, condition := range p.Status.Conditions {
		if condition.Message != "" {
			said += fmt.Sprintf("\n%s: %s: %s", condition.Type, condition.Reason, condition.Message)
		}
	}
	for _, s := range append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...) {
		if w := s.State.Waiting; w != nil {
			said += fmt.Sprintf("\n%s waits: %s: %s", s.Name, w.Reason, w.Message)
		}
		if e := s.State.Terminated; e != nil {
			said += fmt.Sprintf("\n%s ended: %s: %s", s.Name, e.Reason, e.Message)
		}
	}
	events, err := c.Client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
	if err != nil {
		return said
	}
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning {
			said += fmt.Sprintf("\nevent: %s: %s", e.Reason, e.Message)
		}
	}
	return said
}
