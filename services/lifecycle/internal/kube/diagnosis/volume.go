package diagnosis

import (
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
)

var (
	noClass    = regexp.MustCompile(`(?i)storageclass(\.storage\.k8s\.io)? ("[^"]*" )?not found|no persistent volumes available .*no storage class is set`)
	volumeFull = regexp.MustCompile(`(?i)no space left|insufficient (space|capacity|free)|not enough (space|capacity)|quota`)
	badVolume  = regexp.MustCompile(`(?i)access mode|volume ?mode|invalid ?argument|not supported|unsupported`)
	elsewhere  = regexp.MustCompile(`(?i)multi-attach|already (exclusively )?attached|used by (pod|another)|in use`)
)

// claimLost is about a claim whose volume has vanished: what was in it is gone, and the pod with it.
func claimLost(o Observed) (Diagnosis, bool) {
	if o.Claim == nil || o.Claim.Status.Phase != corev1.ClaimLost {
		return Diagnosis{}, false
	}
	return Diagnosis{
		Reason: fault.ReasonVolumeFailed, Code: fault.FailedPrecondition,
		Message: "the volume of its workspace has vanished, and what was in it: somebody removed it",
	}, true
}

// volume says what a claim waits for; no reason where nothing is known to be wrong with it.
func volume(o Observed) Diagnosis {
	if o.Claim == nil {
		return Diagnosis{}
	}
	if o.Claim.DeletionTimestamp != nil {
		return Diagnosis{
			Reason: fault.ReasonVolumeFailed, Code: fault.FailedPrecondition, Since: o.Claim.DeletionTimestamp.Time,
			Message: "the claim of its workspace is being deleted, and not by us",
		}
	}
	if o.Claim.Status.Phase == corev1.ClaimBound {
		return Diagnosis{}
	}
	e := latest(ofClaim(o), "ProvisioningFailed", "FailedBinding", "VolumeMismatch", "ProvisioningSucceeded", "ExternalProvisioning", "WaitForFirstConsumer")
	if e == nil || e.Type != corev1.EventTypeWarning && e.Reason != "FailedBinding" {
		return Diagnosis{}
	}
	d := Diagnosis{Reason: fault.ReasonVolumeFailed, Code: fault.Unavailable, Hope: true, Since: began(e)}
	switch {
	case noClass.MatchString(e.Message):
		d.Code, d.Hope, d.Message = fault.FailedPrecondition, false, "its workspace asks for a storage class that the cluster does not have"
	case e.Reason == "FailedBinding":
		d.Message = "the cluster has no volume for its workspace"
	case e.Reason == "VolumeMismatch", badVolume.MatchString(e.Message):
		d.Code, d.Hope, d.Message = fault.FailedPrecondition, false, "its storage class cannot make such a volume"
	case volumeFull.MatchString(e.Message):
		d.Message = "the storage of its workspace is full"
	default:
		d.Message = "the volume of its workspace could not be made so far"
	}
	d.Message = quoted(d.Message, e.Message)
	return d
}

// mount says why a volume does not come to the pod's node.
func mount(e *corev1.Event) Diagnosis {
	d := Diagnosis{Reason: fault.ReasonVolumeFailed, Code: fault.Unavailable, Hope: true, Since: began(e)}
	switch {
	case elsewhere.MatchString(e.Message):
		d.Message = "the volume of its workspace is still at another node"
	case missing.MatchString(e.Message):
		d.Reason, d.Code = fault.ReasonRuntimeFailed, fault.Unavailable
		d.Message = "something that its pod mounts is missing in the cluster"
	case e.Reason == "FailedAttachVolume":
		d.Message = "the volume of its workspace could not be attached so far"
	default:
		d.Message = "the volume of its workspace could not be mounted so far"
	}
	d.Message = quoted(d.Message, e.Message)
	return d
}

// waitsForClaim is progress where the claim is what is waited for.
func waitsForClaim(o Observed, since time.Time) (Diagnosis, bool) {
	if o.Claim == nil || o.Claim.Status.Phase != corev1.ClaimPending {
		return Diagnosis{}, false
	}
	if d := volume(o); d.Reason != "" {
		return d, true
	}
	return progress(since, "the volume of its workspace is being made"), true
}
