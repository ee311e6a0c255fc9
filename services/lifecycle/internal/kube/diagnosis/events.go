package diagnosis

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// about gives the events of one object, oldest first, by when each was last seen. An event without a UID counts for the object of
// its name: the scheduler and the kubelet always give one.
func about(all []*corev1.Event, kind, name string, uid types.UID) []*corev1.Event {
	var of []*corev1.Event
	for _, e := range all {
		r := e.InvolvedObject
		if r.Kind == kind && r.Name == name && (r.UID == uid || r.UID == "") {
			of = append(of, e)
		}
	}
	slices.SortStableFunc(of, func(a, b *corev1.Event) int { return cmp.Compare(seen(a).UnixNano(), seen(b).UnixNano()) })
	return of
}

// seen is when an event was last reported.
func seen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// began is when an event was first reported.
func began(e *corev1.Event) time.Time {
	switch {
	case !e.FirstTimestamp.IsZero():
		return e.FirstTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func ofPod(o Observed) []*corev1.Event { return about(o.Events, "Pod", o.Pod.Name, o.Pod.UID) }

func ofClaim(o Observed) []*corev1.Event {
	if o.Claim == nil {
		return nil
	}
	return about(o.Events, "PersistentVolumeClaim", o.Claim.Name, o.Claim.UID)
}

// latest is the last event with one of the reasons; nil without one.
func latest(events []*corev1.Event, reasons ...string) *corev1.Event {
	for _, e := range slices.Backward(events) {
		if slices.Contains(reasons, e.Reason) {
			return e
		}
	}
	return nil
}
