package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandtrail/sandtrail/libs/ids"
)

// MaxNames is how many names a sandbox may try where earlier ones are taken. At 10,000 sandboxes the third is tried once in 10^11.
const MaxNames = 16

// PodName and ClaimName give the attempt-th name, from 0 on. The first eight digits of an id are not unique, so the name says
// nothing about whose it is: the labels do, with the whole id.
func PodName(id string, attempt int) string { return "sandbox-" + digits(id, attempt) }

// ClaimName has the same digits as PodName.
func ClaimName(id string, attempt int) string { return "workspace-" + digits(id, attempt) }

func digits(id string, attempt int) string {
	if attempt == 0 {
		return ids.Short(id)
	}
	return ids.Short(ids.Derive("kubernetes name", id, strconv.Itoa(attempt)))
}

// Labels of pods and claims. Values are those of LabelValue; the whole tenant is in AnnotationTenant.
const (
	LabelName    = "app.kubernetes.io/name"
	LabelSandbox = "sandtrail.dev/sandbox"
	LabelTenant  = "sandtrail.dev/tenant"
	LabelWorker  = "sandtrail.dev/worker"

	// Sandboxes is the value of LabelName.
	Sandboxes = "sandtrail-sandbox"
)

// Annotations of pods and claims.
const (
	AnnotationTenant = "sandtrail.dev/tenant"
	// AnnotationSpec is the digest of the pod's spec as it was written, which says whether a pod is what would be made now.
	AnnotationSpec = "sandtrail.dev/spec-sha256"
	// AnnotationDeleteAfter is the time, RFC 3339, after which gc may remove a claim.
	AnnotationDeleteAfter = "compute.paper-board.io/delete-after"
)

// LabelValue is s, or a digest of it where s cannot be the value of a label. No token of ours has a dot, so none looks like a digest.
func LabelValue(s string) string {
	if len(validation.IsValidLabelValue(s)) == 0 && s != "" {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256." + hex.EncodeToString(sum[:16])
}

func labels(worker, tenant, id string) map[string]string {
	return map[string]string{
		LabelName: Sandboxes, LabelSandbox: id, LabelTenant: LabelValue(tenant), LabelWorker: LabelValue(worker),
	}
}

// Selector chooses the pods and claims of a worker.
func Selector(worker string) map[string]string {
	return map[string]string{LabelName: Sandboxes, LabelWorker: LabelValue(worker)}
}
