package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
)

// What a spec that leaves something open gets.
const (
	defaultWorkspaceBytes = 5 << 30
	defaultMemoryBytes    = 512 << 20
	defaultCPUMillis      = 1000
	defaultMountPath      = "/workspace"
)

// Claim of a sandbox's workspace under a name. It outlives the pod and has no owner.
func Claim(c Config, worker, claimName string, s runtime.Spec) *corev1.PersistentVolumeClaim {
	p := c.Profile(s.Tenant)
	claim := &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Name: claimName, Namespace: c.Namespace, Labels: labels(worker, s.Tenant, s.ID),
			Annotations: map[string]string{AnnotationTenant: s.Tenant},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{p.AccessMode}, VolumeMode: new(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(int64(s.WorkspaceBytes), resource.BinarySI), //nolint:gosec // checked by Check
			}},
		},
	}
	if p.StorageClass != "" {
		claim.Spec.StorageClassName = &p.StorageClass
	}
	return claim
}

// Check fills in what a spec leaves open, or says why no pod can be made of it, as a fault of the request.
func Check(c Config, s runtime.Spec) (runtime.Spec, error) {
	if !ids.Valid(s.ID) {
		return s, invalid("a sandbox id is a UUID in lower case")
	}
	set(&s.Hostname, "sandbox-"+ids.Short(s.ID))
	set(&s.MountPath, defaultMountPath)
	set(&s.WorkspaceBytes, defaultWorkspaceBytes)
	set(&s.MemoryBytes, defaultMemoryBytes)
	set(&s.CPUMillis, defaultCPUMillis)
	if s.Tenant == "" {
		return s, invalid("a sandbox has a tenant")
	}
	if len(validation.IsDNS1123Label(s.Hostname)) != 0 {
		return s, invalid("%.80q is no name of a host", s.Hostname)
	}
	if s.WorkspaceBytes >= 1<<62 || s.MemoryBytes >= 1<<62 || s.MaxRuntime < 0 {
		return s, invalid("a limit is out of range")
	}
	if !mountable(s.MountPath) {
		return s, invalid("the workspace cannot be mounted at %.200q: give an absolute path below /, without a colon, and not where the system has its own", s.MountPath)
	}
	ref, err := checkImage(c.Profile(s.Tenant).Registries, s.Image)
	s.Image = ref
	return s, err
}

func invalid(format string, args ...any) error {
	return fault.Newf(fault.InvalidArgument, fault.ReasonValidation, format, args...)
}

// mountable: what a container needs stays its own.
func mountable(p string) bool {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, ":\x00") || len(p) > 1024 {
		return false
	}
	top := "/" + strings.SplitN(p, "/", 3)[1]
	return top != Dir && !slices.Contains([]string{"/proc", "/sys", "/dev"}, top)
}

// checkImage gives the reference in full, so that a node's own search list has no say.
func checkImage(registries []string, image string) (string, error) {
	ref, err := name.ParseReference(strings.TrimSpace(image))
	if err != nil || len(image) > 512 || strings.HasPrefix(image, "/") {
		return "", fault.Newf(fault.InvalidArgument, fault.ReasonImageInvalid, "%.200q is no image reference; write registry/repository:tag or registry/repository@sha256:digest", image)
	}
	host, rest := ref.Context().RegistryStr(), ref.Context().RepositoryStr()
	if host == name.DefaultRegistry {
		host = "docker.io"
	}
	if len(registries) > 0 && !slices.ContainsFunc(registries, func(r string) bool {
		return r == host || host+"/"+rest == r || strings.HasPrefix(host+"/"+rest, strings.TrimSuffix(r, "/")+"/")
	}) {
		return "", fault.Newf(fault.InvalidArgument, fault.ReasonImageInvalid, "images may not come from %.200s here", host)
	}
	return host + "/" + rest + identifier(ref), nil
}

func identifier(ref name.Reference) string {
	switch r := ref.(type) {
	case name.Digest:
		return "@" + r.DigestStr()
	default:
		return fmt.Sprintf(":%s", ref.Identifier())
	}
}
