package diagnosis

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// What keeps a pod from each node, as the scheduler's plugins word it, and what would help.
var (
	noRoom     = regexp.MustCompile(`(?i)insufficient \S+|too many pods|exceed max volume count|not have enough free storage`)
	ownVolume  = regexp.MustCompile(`(?i)persistent ?volume|pvc\(s\)|volume node affinity|no available (volume zone|disk)|exceed max volume count|enough free storage`)
	notForUs   = regexp.MustCompile(`(?i)taint|node affinity/selector|node selector|topology spread|anti-affinity|affinity rules|requested node name|free ports`)
	notReady   = regexp.MustCompile(`(?i)were unschedulable|node\.kubernetes\.io/(not-ready|unreachable|unschedulable)|unknown conditions|(memory|disk|pid)-?pressure`)
	noNodes    = regexp.MustCompile(`(?i)no nodes available`)
	nodeCounts = regexp.MustCompile(`^\d+/\d+ nodes are available:?\s*`)
	preemption = regexp.MustCompile(`(?s)\.?\s*(preemption:|no new claims to deallocate).*$`)
)

// unscheduled is about a pod that has no node yet.
func unscheduled(o Observed) Diagnosis {
	c := condition(o.Pod, corev1.PodScheduled)
	since := first(c.LastTransitionTime, o.Pod.CreationTimestamp)
	switch c.Reason {
	case corev1.PodReasonUnschedulable:
		return noNode(o, c)
	case corev1.PodReasonSchedulingGated:
		d := Diagnosis{
			Reason: fault.ReasonUnschedulable, Code: fault.ResourceExhausted, Hope: true, Since: since,
			Message: "something of the cluster holds it back (scheduling gates)",
		}
		var gates []string
		for _, g := range o.Pod.Spec.SchedulingGates {
			gates = append(gates, g.Name)
		}
		d.Message = quoted(d.Message, strings.Join(gates, ", "))
		return d
	case corev1.PodReasonSchedulerError:
		return Diagnosis{
			Reason: fault.ReasonUnschedulable, Code: fault.ResourceExhausted, Hope: true, Since: since,
			Message: quoted("the cluster's scheduler failed over it", c.Message),
		}
	case "":
		return progress(since, "it waits for a node")
	}
	return Diagnosis{
		Reason: fault.ReasonUnschedulable, Code: fault.ResourceExhausted, Hope: true, Since: since,
		Message: quoted("it has no node", orElse(c.Message, c.Reason)),
	}
}

// noNode says why no node takes a pod. All of it may change without the pod's doing: nodes come and others' pods go.
func noNode(o Observed, c corev1.PodCondition) Diagnosis {
	d := Diagnosis{Reason: fault.ReasonUnschedulable, Code: fault.ResourceExhausted, Hope: true, Since: c.LastTransitionTime.Time}
	reasons := preemption.ReplaceAllString(c.Message, "")
	bare := nodeCounts.ReplaceAllString(reasons, "")
	switch {
	case noNodes.MatchString(bare):
		d.Message = "the cluster has no node for sandboxes"
	case ownVolume.MatchString(bare) && !noRoom.MatchString(bare) && !notForUs.MatchString(bare):
		v := volume(o)
		if v.Reason != "" {
			return v
		}
		d.Reason, d.Code, d.Message = fault.ReasonVolumeFailed, fault.Unavailable, "no node can have the volume of its workspace"
	case noRoom.MatchString(bare):
		d.Message = "no node has room for it: ask for less, or have nodes added"
	case notReady.MatchString(bare):
		d.Message = "no node that may take it is ready"
	case notForUs.MatchString(bare):
		d.Message = "no node may take it: its profile's selector and tolerations fit none"
	default:
		d.Message = "no node takes it"
	}
	d.Message = quoted(d.Message, reasons)
	return d
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
