package diagnosis

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/sandtrail/sandtrail/libs/fault"
)

const (
	podName = "sandbox-0a0a0a0a"
	podUID  = "0a0a0a0a-0000-4000-8000-000000000000"
)

// observation is one thing that a cluster showed, and what is to be said of it.
type observation struct {
	Name     string            `json:"name"`
	Starting bool              `json:"starting"`
	Gone     bool              `json:"gone"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     corev1.PodSpec    `json:"spec"`
	Status   corev1.PodStatus  `json:"status"`
	// Waiting is the state of the sandbox's container, or with Init of the one that brings the toolbox.
	Waiting *corev1.ContainerStateWaiting `json:"waiting"`
	Init    bool                          `json:"init"`
	Claim   *corev1.PersistentVolumeClaim `json:"claim"`
	Node    *corev1.Node                  `json:"node"`
	Events  []struct {
		Kind    string `json:"kind"`
		Type    string `json:"type"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
		UID     string `json:"uid"`
		// At is in seconds.
		At int64 `json:"at"`
	} `json:"events"`
	Want struct {
		Reason   fault.Reason `json:"reason"`
		Code     fault.Code   `json:"code"`
		Message  string       `json:"message"`
		Contains string       `json:"contains"`
		Without  string       `json:"without"`
		Hope     bool         `json:"hope"`
		Over     bool         `json:"over"`
		Since    *metav1.Time `json:"since"`
	} `json:"want"`
}

func (o observation) observed() Observed {
	pod := &corev1.Pod{ObjectMeta: o.Metadata, Spec: o.Spec, Status: o.Status}
	pod.Name, pod.UID = podName, podUID
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = []corev1.Container{{Name: "sandbox", Image: "python:3.12"}}
	}
	pod.Spec.InitContainers = []corev1.Container{{Name: "toolbox", Image: "toolbox:1"}}
	if o.Waiting != nil {
		pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodPending
		state := corev1.ContainerState{Waiting: o.Waiting}
		if o.Init {
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "toolbox", State: state}}
			state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "sandbox", State: state}}
	}
	all := Observed{Pod: pod, Claim: o.Claim, Node: o.Node, Starting: o.Starting}
	if o.Claim != nil {
		o.Claim.Name, o.Claim.UID = "workspace-0a0a0a0a", "0b0b0b0b-0000-4000-8000-000000000000"
	}
	for _, e := range o.Events {
		ref := corev1.ObjectReference{Kind: "Pod", Name: podName, UID: podUID}
		if e.Kind != "" {
			ref = corev1.ObjectReference{Kind: e.Kind, Name: o.Claim.Name, UID: o.Claim.UID}
		}
		if e.UID != "" {
			ref.UID = types.UID(e.UID)
		}
		all.Events = append(all.Events, &corev1.Event{
			InvolvedObject: ref, Type: e.Type, Reason: e.Reason, Message: e.Message, LastTimestamp: metav1.Unix(e.At, 0),
		})
	}
	// The order in which events come says nothing.
	slices.Reverse(all.Events)
	if o.Gone {
		all.Pod = nil
	}
	return all
}

// sound is what is right of every diagnosis.
func sound(t *testing.T, d Diagnosis) {
	t.Helper()
	require.Equal(t, d.Reason == "", d.Code == "", "%+v", d)
	require.False(t, d.Hope && d.Over, "what is over has no hope: %+v", d)
	if d.Reason == "" {
		require.True(t, d.Hope, "%+v", d)
		require.False(t, d.Over, "%+v", d)
		require.Nil(t, d.Fault())
		return
	}
	require.NotEmpty(t, d.Message)
	require.NotContains(t, d.Message, "%!", "a format without its argument: %+v", d)
	require.Less(t, len(d.Message), fault.MaxMessage)
	require.True(t, utf8.ValidString(d.Message))
	i := slices.IndexFunc(fault.Catalog(), func(e fault.Entry) bool { return e.Reason == d.Reason })
	require.GreaterOrEqual(t, i, 0, "%s is in no reference", d.Reason)
	require.Contains(t, fault.Catalog()[i].Codes, d.Code, "the reference does not know that %s comes with %s", d.Reason, d.Code)
	if !d.Over && d.Reason != fault.ReasonEvicted {
		require.Equal(t, d.Hope, d.Code == fault.Unavailable || d.Code == fault.ResourceExhausted, "the code says whether trying again helps: %+v", d)
	}
}

func TestWhatClustersShow(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var all []observation
		require.NoError(t, yaml.UnmarshalStrict(data, &all))
		require.NotEmpty(t, all)
		for _, o := range all {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml")+"/"+o.Name, func(t *testing.T) {
				d := Of(o.observed())
				sound(t, d)
				require.Equal(t, o.Want.Reason, d.Reason, d.Message)
				require.Equal(t, o.Want.Code, d.Code, d.Message)
				require.Equal(t, o.Want.Hope, d.Hope, "hope")
				require.Equal(t, o.Want.Over, d.Over, "over")
				require.Contains(t, d.Message, o.Want.Contains)
				if o.Want.Message != "" {
					require.Equal(t, o.Want.Message, d.Message)
				}
				if o.Want.Without != "" {
					require.NotContains(t, d.Message, o.Want.Without)
				}
				if o.Want.Since != nil {
					require.True(t, o.Want.Since.Time.Equal(d.Since), "since %s, got %s", o.Want.Since, d.Since)
				}
			})
		}
	}
}

// Whatever a component of Kubernetes gives as a reason, there is something to say.
func TestEveryReasonOfKubernetesIsSaid(t *testing.T) {
	node := corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "sandbox", Image: "python:3.12"}}}
	pod := func(s corev1.PodStatus) Observed {
		return Observed{Starting: true, Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName, UID: podUID}, Spec: node, Status: s}}
	}
	for _, reason := range []string{
		"ImagePullBackOff", "ImageInspectError", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable",
		"SignatureValidationFailed", "ImageVolumeMountFailed", "RROUnsupported", "CrashLoopBackOff", "RunContainerError", "KillContainerError",
		"VerifyNonRootError", "RunInitContainerError", "CreatePodSandboxError", "ConfigPodSandboxError", "KillPodSandboxError", "RemoveContainerError",
		"ResizePodInPlaceError", "CreateContainerConfigError", "PreCreateHookError", "CreateContainerError", "PreStartHookError", "PostStartHookError",
	} {
		d := Of(pod(corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "sandbox", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}}))
		sound(t, d)
		require.NotEmpty(t, d.Reason, "waiting: %s", reason)
	}
	for _, reason := range []string{
		"Evicted", "DeadlineExceeded", "NodeLost", "Terminated", "NodeShutdown", "Shutdown", "Preempting", "OutOfcpu", "OutOfmemory", "OutOfpods",
		"OutOfephemeral-storage", "NodeAffinity", "NodePorts", "NodeName", "TaintToleration", "UnexpectedAdmissionError", "UnknownReason", "InvalidNodeInfo",
		"PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch", "SupplementalGroupsPolicyNotSupported", "InitContainerRestartPolicyForbidden",
		"AppArmor", "SysctlForbidden", "PodLevelResourcesNotSupported", "TopologyAffinityError", "Unthought", "",
	} {
		d := Of(pod(corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason}))
		sound(t, d)
		require.True(t, d.Over, "failed: %s", reason)
	}
	for _, reason := range []string{
		"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedMountOnFilesystemMismatch", "FailedCreatePodSandBox", "FailedPodSandBoxStatus",
		"NetworkNotReady", "FailedCreatePodContainer", "FailedPrepareDynamicResources", "FailedSync", "FailedValidation", "FailedKillPod",
	} {
		o := pod(corev1.PodStatus{Phase: corev1.PodPending})
		o.Events = []*corev1.Event{{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: podName}, Type: "Warning", Reason: reason, Message: "x"}}
		d := Of(o)
		sound(t, d)
		require.NotEmpty(t, d.Reason, "event: %s", reason)
		require.True(t, d.Hope, "event: %s", reason)
	}
	for _, reason := range []string{
		"PreemptionByScheduler", "DeletionByPodGC", "DeletionByTaintManager", "EvictionByEvictionAPI", "TerminationByKubelet", "Unthought",
	} {
		o := pod(corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True", Reason: reason}}})
		o.Pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		d := Of(o)
		sound(t, d)
		require.True(t, d.Over, "disruption: %s", reason)
		require.NotEqual(t, fault.ReasonSandboxLost, d.Reason, "disruption: %s", reason)
	}
}

func FuzzDiagnosis(f *testing.F) {
	f.Add("Pending", "Evicted", "low on resource", "ErrImagePull", "not found", "FailedMount", true)
	f.Add("Failed", "", "\xff", "", "", "Pulling", false)
	f.Add("Running", "x", "https://u:p@h/?token=1", "CreateContainerError", "10.0.0.1:1", "Failed", true)
	f.Fuzz(func(t *testing.T, phase, reason, message, held, why, event string, starting bool) {
		o := observation{Starting: starting, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{
			Phase: corev1.PodPhase(phase), Reason: reason, Message: message,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Reason: reason, Message: message}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: held, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: held, Message: why},
			}}},
		}}.observed()
		o.Events = []*corev1.Event{{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: podName}, Type: "Warning", Reason: event, Message: message}}
		sound(t, Of(o))
		o.Pod.Spec.NodeName = ""
		sound(t, Of(o))
	})
}
