// Package diagnosis says what is the matter with a sandbox's pod, in words that a person can act on: a pure function of what the
// cluster shows of the pod, its claim, its node and what was reported about them.
//
//	d := diagnosis.Of(diagnosis.Observed{Pod: pod, Claim: claim, Events: events, Starting: true})
//	if err := d.Fault(); err != nil && !d.Hope { … }
//
// Whatever a cluster says has a diagnosis: what is not known here gets a reason of its kind, with the cluster's own words, cleaned.
package diagnosis

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Observed is what the cluster shows of one sandbox. All of it is read only.
type Observed struct {
	// Pod is the sandbox's; nil is one that was there and is no longer.
	Pod *corev1.Pod
	// Claim is its workspace's; nil where it is not known.
	Claim *corev1.PersistentVolumeClaim
	// Node is the pod's; nil before it has one, and where nodes are not looked at.
	Node *corev1.Node
	// Events are those about the pod and the claim, in any order. Events of others are passed over.
	Events []*corev1.Event
	// Starting: no exec has worked in the sandbox yet.
	Starting bool
}

// Diagnosis of a pod.
type Diagnosis struct {
	// Reason and Code are empty while nothing is wrong.
	Reason fault.Reason
	Code   fault.Code
	// Message is a sentence without a full stop. While nothing is wrong it says what is waited for; empty once it runs.
	Message string
	// Hope: it may yet come right without anybody's doing anything about this pod. Always set while nothing is wrong.
	Hope bool
	// Over: the pod has ended or is being ended. Nothing of it will work again.
	Over bool
	// Since is when this began as far as the cluster tells; zero where it does not.
	Since time.Time
}

// retry is the hint that goes with what may be better later.
const retry = 10 * time.Second

// Fault is the diagnosis as an error; nil while nothing is wrong.
func (d Diagnosis) Fault() *fault.Error {
	if d.Reason == "" {
		return nil
	}
	f := fault.New(d.Code, d.Reason, d.Message)
	if d.Code == fault.Unavailable || d.Code == fault.ResourceExhausted && d.Hope {
		f = f.WithRetry(retry)
	}
	return f
}

// Same reports whether a person would read the same in both.
func (d Diagnosis) Same(other Diagnosis) bool {
	return d.Reason == other.Reason && d.Message == other.Message && d.Over == other.Over
}

// Of gives the diagnosis of what was observed.
func Of(o Observed) Diagnosis {
	switch {
	case o.Pod == nil:
		return Diagnosis{
			Reason: fault.ReasonSandboxLost, Code: fault.FailedPrecondition, Over: true,
			Message: "its pod is gone: it was deleted, and not by us",
		}
	case o.Pod.Status.Phase == corev1.PodFailed, o.Pod.Status.Phase == corev1.PodSucceeded, o.Pod.Status.Phase == corev1.PodUnknown:
		return ended(o)
	case o.Pod.DeletionTimestamp != nil:
		return deleted(o)
	}
	for _, look := range []func(Observed) (Diagnosis, bool){disrupted, terminated, unreachable, claimLost} {
		if d, found := look(o); found {
			return d
		}
	}
	if condition(o.Pod, corev1.PodReady).Status == corev1.ConditionTrue {
		return Diagnosis{Hope: true, Since: condition(o.Pod, corev1.PodReady).LastTransitionTime.Time}
	}
	if o.Pod.Spec.NodeName == "" && o.Pod.Status.Phase != corev1.PodRunning {
		return unscheduled(o)
	}
	return waiting(o)
}

// progress is a diagnosis of nothing wrong.
func progress(since time.Time, message string) Diagnosis {
	return Diagnosis{Hope: true, Since: since, Message: message}
}

// condition of a pod; one that it does not have is empty.
func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

// quoted puts the cluster's words behind ours.
func quoted(ours, theirs string) string {
	if theirs = Clean(theirs); theirs == "" {
		return ours
	}
	return ours + ": " + theirs
}

// first is the earliest time that is set.
func first(times ...metav1.Time) time.Time {
	var at time.Time
	for _, t := range times {
		if !t.IsZero() && (at.IsZero() || t.Time.Before(at)) {
			at = t.Time
		}
	}
	return at
}
