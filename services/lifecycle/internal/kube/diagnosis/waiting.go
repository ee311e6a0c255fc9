package diagnosis

import (
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
)

var (
	noHandler   = regexp.MustCompile(`(?i)no runtime for "?[^" ]+"? is configured|runtimehandler "?[^" ]+"? not supported|runtime handler .*(not found|not supported)|failed to get sandbox runtime`)
	noNetwork   = regexp.MustCompile(`(?i)\bcni\b|network|no (available )?ip addresses|failed to allocate`)
	missing     = regexp.MustCompile(`(?i)(secret|configmap)s? "[^"]*" not found|couldn't find key|object .* not registered`)
	wrongArch   = regexp.MustCompile(`(?i)exec format error`)
	noProgram   = regexp.MustCompile(`(?i)no such file or directory|executable file not found|not a directory|permission denied`)
	passing     = regexp.MustCompile(`(?i)deadline ?exceeded|timed? ?out|is reserved|connection refused|unavailable|temporar|try again|transport is closing`)
	runsAsRoot  = regexp.MustCompile(`(?i)runasnonroot`)
	noMemoryFor = regexp.MustCompile(`(?i)cannot allocate memory|memory limit too low|out of memory`)
)

// waiting is about a pod that has a node and is not ready there.
func waiting(o Observed) Diagnosis {
	statuses := append(append([]corev1.ContainerStatus{}, o.Pod.Status.InitContainerStatuses...), o.Pod.Status.ContainerStatuses...)
	for _, s := range statuses {
		if w := s.State.Waiting; w != nil {
			if d, found := held(o, s, w); found {
				return d
			}
		}
	}
	if d, found := stuck(o); found {
		return d
	}
	since := sinceWaiting(o)
	if d, found := waitsForClaim(o, since); found {
		return d
	}
	for _, s := range o.Pod.Status.ContainerStatuses {
		if r := s.State.Running; r != nil {
			return progress(r.StartedAt.Time, "its toolbox does not answer yet")
		}
	}
	if e := latest(ofPod(o), "Pulling", "Pulled", "Created", "Started"); e != nil && e.Reason == "Pulling" {
		return progress(began(e), "its image is being pulled")
	}
	if made := condition(o.Pod, corev1.PodReadyToStartContainers); made.Status == corev1.ConditionTrue {
		return progress(made.LastTransitionTime.Time, "its image is being pulled, or its container made")
	}
	return progress(since, "its node prepares it")
}

// held says what a container's waiting state is about; not found where it only takes its time.
func held(o Observed, s corev1.ContainerStatus, w *corev1.ContainerStateWaiting) (Diagnosis, bool) {
	if d, found := image(o, s, w.Reason, w.Message); found {
		return d, true
	}
	d := Diagnosis{Reason: fault.ReasonRuntimeFailed, Code: fault.FailedPrecondition, Since: sinceWaiting(o)}
	text := w.Message
	switch w.Reason {
	case "", "ContainerCreating", "PodInitializing", "RestartingAllContainers":
		return Diagnosis{}, false
	case "CrashLoopBackOff":
		d.Message = "its toolbox ends whenever it is started"
		if t := s.LastTerminationState.Terminated; t != nil {
			text = exit(t)
		}
	case "CreateContainerConfigError", "VerifyNonRootError":
		d.Message = "its container cannot be set up"
		switch {
		case runsAsRoot.MatchString(text):
			d.Reason, d.Message = fault.ReasonImageInvalid, "its image wants to run as root, which sandboxes may not"
		case missing.MatchString(text):
			d.Message = "something that its pod refers to is missing in the cluster"
		}
	case "ImageVolumeMountFailed", "RROUnsupported":
		d.Message = "its node cannot mount what the pod needs"
	default:
		d.Message = "its container could not be started"
		d = starts(d, text)
		if passing.MatchString(text) {
			d.Code, d.Hope = fault.Unavailable, true
			d.Message = "its container could not be started so far"
		}
	}
	d.Message = quoted(d.Message, orElse(text, w.Reason))
	return d, true
}

// starts refines a diagnosis by why a program could not be started.
func starts(d Diagnosis, text string) Diagnosis {
	switch {
	case wrongArch.MatchString(text):
		d.Reason, d.Code, d.Message = fault.ReasonImageInvalid, fault.FailedPrecondition, "its image is for another kind of machine than its node is"
	case noMemoryFor.MatchString(text):
		d.Reason, d.Code, d.Message = fault.ReasonOutOfMemory, fault.ResourceExhausted, "its memory is too little to start at all"
	case noProgram.MatchString(text):
		d.Message = "its toolbox is not where the pod looks for it"
	}
	return d
}

// stuck looks for what the kubelet reports by events alone. A report that is older than a later step is settled.
func stuck(o Observed) (Diagnosis, bool) {
	e := latest(ofPod(o),
		"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedMountOnFilesystemMismatch", "FailedCreatePodSandBox", "FailedPodSandBoxStatus",
		"NetworkNotReady", "FailedCreatePodContainer", "FailedPrepareDynamicResources", "FailedSync", "FailedValidation", "FailedKillPod",
		"SuccessfulAttachVolume", "SuccessfulMountVolume", "Pulling", "Pulled", "Created", "Started",
	)
	if e == nil {
		return Diagnosis{}, false
	}
	// Volumes and network come before this. Events have whole seconds.
	if made := condition(o.Pod, corev1.PodReadyToStartContainers); made.Status == corev1.ConditionTrue && !seen(e).After(made.LastTransitionTime.Time) {
		return Diagnosis{}, false
	}
	d := Diagnosis{Reason: fault.ReasonRuntimeFailed, Code: fault.Unavailable, Hope: true, Since: began(e)}
	switch e.Reason {
	case "FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedMountOnFilesystemMismatch":
		if v := volume(o); v.Reason != "" {
			return v, true
		}
		return mount(e), true
	case "FailedCreatePodSandBox":
		switch {
		case noHandler.MatchString(e.Message):
			d.Code, d.Hope, d.Message = fault.FailedPrecondition, false, "its node does not have the runtime of the cluster's runtime class: install gVisor on it"
		case noNetwork.MatchString(e.Message):
			d.Message = "its node could not give it a network so far"
		default:
			d.Message = "its node could not make the pod so far"
		}
	case "NetworkNotReady":
		d.Message = "the network of its node is not ready"
	case "FailedPodSandBoxStatus", "FailedCreatePodContainer", "FailedPrepareDynamicResources", "FailedSync", "FailedValidation", "FailedKillPod":
		d.Message = "its node could not make the pod so far"
	default:
		return Diagnosis{}, false
	}
	d.Message = quoted(d.Message, e.Message)
	return d, true
}

// unreachable is about a node that does not answer. What runs there may run on: its end is not seen.
func unreachable(o Observed) (Diagnosis, bool) {
	if o.Node == nil {
		// Without the node, the node's controller marks the pod.
		c := condition(o.Pod, corev1.PodReady)
		if c.Status == corev1.ConditionTrue || c.Reason != "NodeNotReady" {
			return Diagnosis{}, false
		}
		return silent(c.LastTransitionTime.Time), true
	}
	for _, c := range o.Node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return silent(c.LastTransitionTime.Time), true
		}
	}
	return Diagnosis{}, false
}

func silent(since time.Time) Diagnosis {
	return Diagnosis{
		Reason: fault.ReasonNodeLost, Code: fault.Unavailable, Hope: true, Since: since, Message: "its node does not answer",
	}
}
