package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startPatience bounds the wait for every process. A machine that others take is slow.
const startPatience = 8 * time.Minute

// Ready waits until every process of the installation is.
func (i *Installation) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	err := until(ctx, "every process is ready", i.rolledOut)
	if err != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return fmt.Errorf("%w\n%s", err, i.Describe(after))
	}
	return nil
}

// rolledOut is nil once Deployments, StatefulSets and Jobs are what they should be.
func (i *Installation) rolledOut(ctx context.Context) error {
	apps := i.cluster.Client.AppsV1()
	deployments, err := apps.Deployments(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var waits []string
	wait := func(ready bool, kind, name string) {
		if !ready {
			waits = append(waits, kind+" "+name)
		}
	}
	for _, d := range deployments.Items {
		s := d.Status
		wait(s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == *d.Spec.Replicas && s.AvailableReplicas == *d.Spec.Replicas && s.Replicas == *d.Spec.Replicas, "deployment", d.Name)
	}
	sets, err := apps.StatefulSets(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range sets.Items {
		wait(s.Status.ObservedGeneration >= s.Generation && s.Status.ReadyReplicas == *s.Spec.Replicas, "stateful set", s.Name)
	}
	jobs, err := i.cluster.Client.BatchV1().Jobs(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, j := range jobs.Items {
		// Those of gc come each minute and are nobody's start.
		wait(j.Status.Succeeded > 0 || len(j.OwnerReferences) > 0, "job", j.Name)
	}
	if len(deployments.Items) == 0 || len(sets.Items) == 0 || len(jobs.Items) == 0 {
		return errors.New("nothing is there yet")
	}
	if len(waits) > 0 {
		return errors.New(strings.Join(waits, ", "))
	}
	return nil
}

// Describe tells of each pod of the installation: its state, what the cluster says of it, and the end of its log.
func (i *Installation) Describe(ctx context.Context) string {
	var b strings.Builder
	for _, namespace := range []string{Namespace, Sandboxes} {
		pods, err := i.cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, p := range pods.Items {
			fmt.Fprintf(&b, "== %s/%s: %s\n", namespace, p.Name, i.tell(ctx, &p))
		}
	}
	return b.String()
}

func (i *Installation) tell(ctx context.Context, p *corev1.Pod) string {
	var b strings.Builder
	b.WriteString(string(p.Status.Phase))
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			fmt.Fprintf(&b, "\n%s: %s", c.Type, c.Message)
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			fmt.Fprintf(&b, "\n%s waits: %s: %s", s.Name, w.Reason, w.Message)
		}
		if e := s.State.Terminated; e != nil {
			fmt.Fprintf(&b, "\n%s ended: %s, exit code %d %s", s.Name, e.Reason, e.ExitCode, e.Message)
		}
		if s.RestartCount > 0 {
			fmt.Fprintf(&b, "\n%s was restarted %d times", s.Name, s.RestartCount)
		}
	}
	lines := int64(15)
	log, err := i.cluster.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
	if err != nil {
		log = []byte(err.Error())
	}
	fmt.Fprintf(&b, "\n%s", log)
	return b.String()
}
