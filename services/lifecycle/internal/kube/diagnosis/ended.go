package diagnosis

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
)

var (
	ownDisk     = regexp.MustCompile(`(?i)ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|emptydir volume .* exceeds`)
	shortMemory = regexp.MustCompile(`(?i)low on resource: memory|memorypressure`)
	shortDisk   = regexp.MustCompile(`(?i)low on resource: (ephemeral-storage|inodes|nodefs|imagefs)|diskpressure`)
)

// refusals of a kubelet that had no place for the pod when it came, by the pod's reason.
const outOf = "OutOf"

// ended is about a pod whose phase says that nothing of it runs any more.
func ended(o Observed) Diagnosis {
	p := o.Pod
	d := Diagnosis{Reason: fault.ReasonSandboxLost, Code: fault.FailedPrecondition, Over: true, Since: endedAt(p)}
	message := p.Status.Message
	switch reason := p.Status.Reason; {
	case reason == "Evicted":
		return evicted(d, message)
	case reason == "DeadlineExceeded":
		d.Reason, d.Message = fault.ReasonSandboxExpired, "its time was over"
		return d
	case reason == "NodeLost", p.Status.Phase == corev1.PodUnknown:
		d.Reason, d.Code, d.Message = fault.ReasonNodeLost, fault.Unavailable, "its node does not answer any more"
	case reason == "Terminated", reason == "NodeShutdown", reason == "Shutdown":
		d.Reason, d.Code, d.Message = fault.ReasonEvicted, fault.Unavailable, "its node shuts down"
	case reason == "Preempting", reason == "Preempted":
		d.Reason, d.Code, d.Message = fault.ReasonEvicted, fault.Unavailable, "its place was needed for something more important"
	case reason != "" && !ran(p):
		// The kubelet did not admit it: OutOfcpu, NodeAffinity, UnexpectedAdmissionError and the like.
		d.Reason, d.Code, d.Message = fault.ReasonUnschedulable, fault.ResourceExhausted, "its node did not take it"
		if strings.HasPrefix(reason, outOf) {
			d.Message = "its node had no room left when it came"
		}
		message = orElse(message, reason)
	default:
		if t, found := disrupted(o); found {
			t.Over, t.Hope, t.Since = true, false, d.Since
			return t
		}
		if t, found := terminated(o); found {
			t.Since = d.Since
			return t
		}
		d.Message = "its pod ended"
		message = orElse(message, reason)
	}
	d.Message = quoted(d.Message, message)
	return d
}

func evicted(d Diagnosis, message string) Diagnosis {
	d.Reason, d.Code = fault.ReasonEvicted, fault.Unavailable
	switch {
	case ownDisk.MatchString(message):
		d.Reason, d.Code, d.Message = fault.ReasonDiskFull, fault.ResourceExhausted, "it wrote more outside of its workspace than it may"
	case shortMemory.MatchString(message):
		d.Message = "its node ran short of memory"
	case shortDisk.MatchString(message):
		d.Message = "its node ran short of disk"
	default:
		d.Message = "the cluster took it off its node"
	}
	d.Message = quoted(d.Message, message)
	return d
}

// deleted is about a pod that is being deleted: its programs are told to end at once.
func deleted(o Observed) Diagnosis {
	if d, found := disrupted(o); found {
		d.Over, d.Hope = true, false
		return d
	}
	if d, found := unreachable(o); found {
		d.Over, d.Hope, d.Message = true, false, "its node does not answer any more, and its pod is deleted"
		return d
	}
	return Diagnosis{
		Reason: fault.ReasonSandboxLost, Code: fault.FailedPrecondition, Over: true, Since: o.Pod.DeletionTimestamp.Time,
		Message: "its pod was deleted, and not by us",
	}
}

// disrupted is about a pod that the cluster has decided to end, and says why.
func disrupted(o Observed) (Diagnosis, bool) {
	c := condition(o.Pod, corev1.DisruptionTarget)
	if c.Status != corev1.ConditionTrue {
		return Diagnosis{}, false
	}
	d := Diagnosis{Reason: fault.ReasonEvicted, Code: fault.Unavailable, Since: c.LastTransitionTime.Time}
	switch c.Reason {
	case "PreemptionByScheduler":
		d.Message = "its place was needed for something more important"
		return d, true
	case "DeletionByPodGC":
		d.Reason, d.Message = fault.ReasonNodeLost, "its node is no longer in the cluster"
		return d, true
	case "DeletionByTaintManager":
		if lost, found := unreachable(o); found {
			d.Reason, d.Message = lost.Reason, "its node does not answer any more"
			return d, true
		}
		d.Message = "its node was closed to it (a taint)"
	case "EvictionByEvictionAPI":
		d.Message = "its node is being emptied"
		return d, true
	case "TerminationByKubelet":
		return evicted(d, c.Message), true
	default:
		d.Message = "the cluster ends it"
	}
	d.Message = quoted(d.Message, orElse(c.Message, c.Reason))
	return d, true
}

// terminated is about a container that has ended: pods of sandboxes are not restarted, so the pod ends with it.
func terminated(o Observed) (Diagnosis, bool) {
	for _, s := range o.Pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			d := Diagnosis{
				Reason: fault.ReasonRuntimeFailed, Code: fault.FailedPrecondition, Over: true, Since: t.FinishedAt.Time,
				Message: fmt.Sprintf("its preparation failed (init container %s)", Clean(s.Name)),
			}
			d.Message = quoted(starts(d, t.Message).Message, exit(t))
			return d, true
		}
	}
	for _, s := range o.Pod.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil {
			return died(o, t), true
		}
	}
	return Diagnosis{}, false
}

func died(o Observed, t *corev1.ContainerStateTerminated) Diagnosis {
	d := Diagnosis{Reason: fault.ReasonSandboxLost, Code: fault.FailedPrecondition, Over: true, Since: t.FinishedAt.Time}
	switch t.Reason {
	case "OOMKilled":
		d.Reason, d.Code, d.Message = fault.ReasonOutOfMemory, fault.ResourceExhausted, "it used more memory than it has"
		if limit := memoryLimit(o.Pod); limit != "" {
			d.Message += " (" + limit + ")"
		}
		return d
	case "ContainerCannotRun", "StartError", "RunContainerError", "ContainerStartError":
		d.Reason, d.Message = fault.ReasonRuntimeFailed, "its container could not be started"
		d = starts(d, t.Message)
	case "ContainerStatusUnknown":
		d.Message = "its node lost track of it"
	case "DeadlineExceeded":
		d.Reason, d.Message = fault.ReasonSandboxExpired, "its time was over"
		return d
	default:
		d.Message = "its toolbox ended"
		if o.Starting {
			d.Reason, d.Message = fault.ReasonRuntimeFailed, "its toolbox ended before it answered"
			d = starts(d, t.Message)
		}
	}
	d.Message = quoted(d.Message, exit(t))
	return d
}

// exit tells how a container ended.
func exit(t *corev1.ContainerStateTerminated) string {
	how := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Signal != 0 {
		how = fmt.Sprintf("signal %d", t.Signal)
	} else if t.ExitCode > 128 && t.ExitCode <= 128+64 {
		how = fmt.Sprintf("signal %d", t.ExitCode-128)
	}
	if t.Reason == "OOMKilled" {
		how = "out of memory"
	}
	if t.Message != "" {
		how += ", " + t.Message
	}
	return how
}

func memoryLimit(p *corev1.Pod) string {
	for _, c := range p.Spec.Containers {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok {
			return q.String()
		}
	}
	return ""
}

// ran reports whether any container of the pod was ever started.
func ran(p *corev1.Pod) bool {
	for _, all := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range all {
			if s.ContainerID != "" || s.State.Running != nil || s.State.Terminated != nil {
				return true
			}
		}
	}
	return false
}

// endedAt is when the last container ended; zero where none tells.
func endedAt(p *corev1.Pod) (at time.Time) {
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	if at.IsZero() {
		at = condition(p, corev1.PodReady).LastTransitionTime.Time
	}
	return at
}
