package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/runtime"
)

// Names in a pod.
const (
	// Container is the one in which the agent and the programs run.
	Container = "sandbox"
	// InitContainer brings the toolbox.
	InitContainer = "toolbox"

	volumeWorkspace = "workspace"
	volumeToolbox   = "toolbox"
	volumeState     = "state"

	// Dir holds the toolbox and what the agent keeps.
	Dir        = "/.sandtrail"
	dirToolbox = Dir + "/bin"
	dirState   = Dir + "/state"

	envPodName = "SANDTRAIL_POD_NAME"
	envPodUID  = "SANDTRAIL_POD_UID"

	// toolboxBytes bounds the volume that the init container copies to.
	toolboxBytes = 128 << 20
)

// Pod of a sandbox under a name, with the claim that it mounts. Its environment is no part of it: that comes to the agent later. Config
// has its defaults filled in; the spec has passed Check.
func Pod(c Config, worker, podName, claimName string, s runtime.Spec) *corev1.Pod {
	p := c.Profile(s.Tenant)
	spec := corev1.PodSpec{
		Hostname: s.Hostname, RuntimeClassName: &p.RuntimeClass, RestartPolicy: corev1.RestartPolicyNever,
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		TerminationGracePeriodSeconds: &p.GraceSeconds, ActiveDeadlineSeconds: new(deadline(p, s)),
		NodeSelector: maps.Clone(p.NodeSelector), Tolerations: p.Tolerations, PriorityClassName: p.PriorityClass,
		TopologySpreadConstraints: p.TopologySpread,
		// Nothing is reachable, so a look-up shall fail at once; the node's own resolver is nobody's business.
		DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: &p.UID, RunAsGroup: &p.GID, FSGroup: &p.GID,
			FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{
			{Name: volumeWorkspace, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName}}},
			emptyDir(volumeState, p.StorageBytes),
		},
	}
	for _, n := range p.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: n})
	}
	binary := bringToolbox(&spec, c.Toolbox, p, s)
	spec.Containers = []corev1.Container{{
		Name: Container, Image: s.Image, ImagePullPolicy: p.PullPolicy, WorkingDir: s.MountPath,
		Command: []string{binary}, Args: agentArgs(c, s),
		Env:       []corev1.EnvVar{fromField(envPodName, "metadata.name"), fromField(envPodUID, "metadata.uid")},
		Ports:     []corev1.ContainerPort{{Name: "agent", ContainerPort: c.Port, Protocol: corev1.ProtocolTCP}},
		Resources: resources(p, s), SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{
			// Each sandbox sees only a directory of its own in the volume: nobody's else's, should the claim turn out to be another's,
			// and not what a file system has at its top.
			{Name: volumeWorkspace, MountPath: s.MountPath, SubPath: s.ID},
			{Name: volumeToolbox, MountPath: dirToolbox, ReadOnly: true},
			{Name: volumeState, MountPath: dirState},
		},
	}}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: podName, Namespace: c.Namespace, Labels: labels(worker, s.Tenant, s.ID), Annotations: annotations(p, s.Tenant),
		},
		Spec: spec,
	}
	pod.Annotations[AnnotationSpec] = digest(spec)
	return pod
}

// agentArgs are what the agent is started with. A dollar sign in a value would begin a reference to a variable.
func agentArgs(c Config, s runtime.Spec) []string {
	args := []string{
		"agent", fmt.Sprintf("--listen=:%d", c.Port), "--client-ca=" + escape(c.ClientCA),
		"--pod-name=$(" + envPodName + ")", "--pod-uid=$(" + envPodUID + ")",
		"--workspace=" + escape(s.MountPath), "--state=" + dirState,
		// Below the pod's own limit, so that the largest program is ended and not the sandbox.
		fmt.Sprintf("--memory-bytes=%d", s.MemoryBytes-s.MemoryBytes/16),
	}
	if s.PIDs > 0 {
		args = append(args, fmt.Sprintf("--processes=%d", s.PIDs))
	}
	return args
}

func escape(s string) string { return strings.ReplaceAll(s, "$", "$$") }

// bringToolbox adds what brings the toolbox into the pod, and says where it will be.
func bringToolbox(spec *corev1.PodSpec, t Toolbox, p Profile, s runtime.Spec) (binary string) {
	if t.Source == SourceImage {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: volumeToolbox, VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: t.Image, PullPolicy: corev1.PullIfNotPresent},
		}})
		return path.Join(dirToolbox, t.Path)
	}
	spec.Volumes = append(spec.Volumes, emptyDir(volumeToolbox, toolboxBytes))
	spec.InitContainers = []corev1.Container{{
		Name: InitContainer, Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{t.Path}, Args: []string{"install", dirToolbox},
		// As much as the sandbox itself: it is over before that begins, so this costs no room, and no quota refuses it.
		Resources: resources(p, s), SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{{Name: volumeToolbox, MountPath: dirToolbox}},
	}}
	return dirToolbox + "/toolbox"
}

func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Privileged: new(false), RunAsNonRoot: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func fromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

func emptyDir(name string, limit int64) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(limit, resource.BinarySI)},
	}}
}

// resources are the sandbox's limits and the part of them that is reserved. Kubernetes has no limit of processes for one pod: the agent has
// it.
func resources(p Profile, s runtime.Spec) corev1.ResourceRequirements {
	cpu, memory := int64(s.CPUMillis), int64(s.MemoryBytes) //nolint:gosec // checked by Check
	return corev1.ResourceRequirements{
		Limits:   quantities(cpu, memory, p.StorageBytes),
		Requests: quantities(share(cpu, p.CPURequest), share(memory, p.MemoryRequest), share(p.StorageBytes, p.StorageRequest)),
	}
}

func share(v, percent int64) int64 { return max(1, v/100*percent+v%100*percent/100) }

func quantities(cpuMillis, memory, storage int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(cpuMillis, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(storage, resource.BinarySI),
	}
}

// deadline is when the cluster ends a sandbox that the log should have ended before.
func deadline(p Profile, s runtime.Spec) int64 {
	own := int64((s.MaxRuntime + time.Second - 1) / time.Second)
	if own <= 0 {
		own = p.MaxRuntimeSeconds
	}
	return min(own+p.SlackSeconds, 1<<31-1)
}

func annotations(p Profile, tenant string) map[string]string {
	all := map[string]string{
		// Nothing makes a sandbox again on another node, so it must not be moved for the sake of order.
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	}
	maps.Copy(all, p.Annotations)
	all[AnnotationTenant] = tenant
	return all
}

func digest(spec corev1.PodSpec) string {
	data, err := json.Marshal(spec)
	if err != nil {
		panic(err) // a pod's spec is made of what JSON has
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
