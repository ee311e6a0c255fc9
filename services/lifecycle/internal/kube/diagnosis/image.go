package diagnosis

import (
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// What registries and container runtimes say when an image cannot be had. The order counts: a registry that refuses access likes
// to add that the repository may not exist.
var pullCauses = []struct {
	says *regexp.Regexp
	Diagnosis
}{
	{
		regexp.MustCompile(`(?i)no space left on device|insufficient free disk space`),
		Diagnosis{Reason: fault.ReasonDiskFull, Code: fault.ResourceExhausted, Hope: true, Message: "its node has no room on its disk for the image %s"},
	},
	{
		regexp.MustCompile(`(?i)too ?many ?requests|\b429\b|rate limit|qps exceeded`),
		Diagnosis{Reason: fault.ReasonImagePullFailed, Code: fault.Unavailable, Hope: true, Message: "the registry of %s gives out no more for now"},
	},
	{
		regexp.MustCompile(`(?i)no match for platform|no matching manifest|does not match the (specified )?platform|exec format error|image operating system .* cannot be used`),
		Diagnosis{Reason: fault.ReasonImageInvalid, Code: fault.FailedPrecondition, Message: "the image %s is for another kind of machine than the nodes are"},
	},
	{
		regexp.MustCompile(`(?i)unsupported (media ?type|manifest)|media type .* is not supported|invalid tar header|unexpected media type|failed to (unpack|extract) .*(invalid|corrupt)|mismatched? (image )?rootfs`),
		Diagnosis{Reason: fault.ReasonImageInvalid, Code: fault.FailedPrecondition, Message: "%s is no image that the nodes can run"},
	},
	{
		regexp.MustCompile(`(?i)unauthorized|\b401\b|\b403\b|forbidden|access (to the resource is )?denied|pull access denied|authentication required|authorization failed|insufficient_scope|no basic auth|denied:|may require 'docker login'`),
		Diagnosis{Reason: fault.ReasonImagePullFailed, Code: fault.FailedPrecondition, Message: "the registry refuses access to %s: it does not exist, or needs a pull secret"},
	},
	{
		regexp.MustCompile(`(?i)manifest unknown|name unknown|repository .*not (found|known)|\b404\b|: not found|not found: manifest|manifest .* not found|reading manifest .*unknown`),
		Diagnosis{Reason: fault.ReasonImageNotFound, Code: fault.NotFound, Message: "the registry has no image %s: check its name and tag"},
	},
}

// image says why a container's image is not there. reason and message are those of its waiting state.
func image(o Observed, s corev1.ContainerStatus, reason, message string) (Diagnosis, bool) {
	var d Diagnosis
	switch reason {
	case "InvalidImageName":
		d = Diagnosis{Reason: fault.ReasonImageInvalid, Code: fault.InvalidArgument, Message: "%s is no reference of an image"}
	case "ErrImageNeverPull":
		d = Diagnosis{Reason: fault.ReasonImageNotFound, Code: fault.NotFound, Message: "the image %s is not on the node, and this cluster is set to pull none"}
		message = ""
	case "SignatureValidationFailed":
		d = Diagnosis{Reason: fault.ReasonImageInvalid, Code: fault.FailedPrecondition, Message: "the signature of the image %s is not accepted"}
	case "RegistryUnavailable":
		d = Diagnosis{Reason: fault.ReasonImagePullFailed, Code: fault.Unavailable, Hope: true, Message: "the registry of %s does not answer"}
	case "ImageInspectError":
		d = Diagnosis{Reason: fault.ReasonRuntimeFailed, Code: fault.Unavailable, Hope: true, Message: "the node cannot tell whether it has the image %s"}
	case "ErrImagePull", "ImagePullBackOff":
		d, message = pull(o, message)
	default:
		return Diagnosis{}, false
	}
	name, ours := imageOf(o.Pod, s)
	d.Message = quoted(strings.Replace(d.Message, "%s", name, 1), message)
	if ours {
		// The tenant did not choose it, so no other image of theirs helps.
		d.Reason, d.Code = fault.ReasonRuntimeFailed, fault.FailedPrecondition
		if d.Hope {
			d.Code = fault.Unavailable
		}
		d.Message = "the image that brings the toolbox is missing: " + d.Message
	}
	d.Since = sinceWaiting(o)
	return d, true
}

// pull says why a pull fails. Kubelets before 1.32 do not repeat the cause while they wait for the next attempt: it is in an event.
func pull(o Observed, message string) (Diagnosis, string) {
	texts := []string{message}
	if e := latest(ofPod(o), "Failed"); e != nil {
		texts = append(texts, e.Message)
	}
	for _, text := range texts {
		for _, c := range pullCauses {
			if c.says.MatchString(text) {
				return c.Diagnosis, text
			}
		}
	}
	return Diagnosis{
		Reason: fault.ReasonImagePullFailed, Code: fault.Unavailable, Hope: true, Message: "the image %s cannot be pulled so far",
	}, texts[len(texts)-1]
}

// imageOf is the image that a container was asked to run, and whether it is one of ours: init containers bring the toolbox.
func imageOf(p *corev1.Pod, s corev1.ContainerStatus) (name string, ours bool) {
	for _, c := range p.Spec.InitContainers {
		if c.Name == s.Name {
			return Clean(c.Image), true
		}
	}
	for _, c := range p.Spec.Containers {
		if c.Name == s.Name {
			return Clean(c.Image), false
		}
	}
	return Clean(s.Image), false
}

// sinceWaiting is since when the containers are waited for: the pod's time on its node.
func sinceWaiting(o Observed) time.Time {
	if t := o.Pod.Status.StartTime; t != nil {
		return t.Time
	}
	return condition(o.Pod, corev1.PodScheduled).LastTransitionTime.Time
}
