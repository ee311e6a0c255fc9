package diagnosis

import (
	"context"
	"errors"
	"regexp"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// What the API server's admission says when it refuses an object. The order counts.
var admission = []struct {
	says *regexp.Regexp
	fault.Error
}{
	{regexp.MustCompile(`(?i)exceeded quota`), fault.Error{
		Code: fault.ResourceExhausted, Reason: fault.ReasonQuota, Message: "a quota of the cluster is used up",
	}},
	{regexp.MustCompile(`(?i)status unknown for quota`), fault.Error{
		Code: fault.Unavailable, Reason: fault.ReasonWorkerUnavailable, Message: "a quota of the cluster is new and not counted yet",
	}},
	{regexp.MustCompile(`(?i)failed quota`), fault.Error{
		Code: fault.ResourceExhausted, Reason: fault.ReasonQuota, Message: "a quota of the cluster wants what the sandbox does not say",
	}},
	{regexp.MustCompile(`(?i)(minimum|maximum) \S+ (usage|storage) ?(size )?per|max limit to request ratio`), fault.Error{
		Code: fault.ResourceExhausted, Reason: fault.ReasonQuota, Message: "a limit range of the cluster does not allow its size",
	}},
	{regexp.MustCompile(`(?i)violates podsecurity`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonClusterRefused, Message: "the cluster's Pod Security does not let the sandbox in",
	}},
	{regexp.MustCompile(`(?i)failed calling webhook|failed to call webhook`), fault.Error{
		Code: fault.Unavailable, Reason: fault.ReasonClusterRefused, Message: "a webhook that the cluster asks does not answer",
	}},
	{regexp.MustCompile(`(?i)admission webhook .* denied the request`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonClusterRefused, Message: "a webhook of the cluster refuses the sandbox",
	}},
	{regexp.MustCompile(`(?i)validatingadmissionpolicy|mutatingadmissionpolicy|denied request`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonClusterRefused, Message: "a policy of the cluster refuses the sandbox",
	}},
	{regexp.MustCompile(`(?i)runtimeclass .*not found`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonRuntimeFailed, Message: "the cluster does not have the runtime class of sandboxes: install gVisor and its class",
	}},
	{regexp.MustCompile(`(?i)no priorityclass with name`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonRuntimeFailed, Message: "the cluster does not have the priority class of sandboxes",
	}},
	{regexp.MustCompile(`(?i)error looking up service account`), fault.Error{
		Code: fault.Unavailable, Reason: fault.ReasonRuntimeFailed, Message: "the namespace of sandboxes is not ready",
	}},
	{regexp.MustCompile(`(?i)because it is being terminated`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonClusterRefused, Message: "the namespace of sandboxes is being deleted",
	}},
	{regexp.MustCompile(`(?i)namespaces? "?[^" ]+"? not found`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonRuntimeFailed, Message: "the namespace of sandboxes does not exist",
	}},
	{regexp.MustCompile(`(?i)(user|system:serviceaccount)\S* .*cannot (create|get|list|watch|patch|update|delete)`), fault.Error{
		Code: fault.FailedPrecondition, Reason: fault.ReasonRuntimeFailed, Message: "the worker's role in the cluster lacks a permission",
	}},
}

// Refused says what an error of the API server's means for the sandbox; nil for nil. The codes tell what to do: Unavailable and
// Conflict may be tried again, after RetryAfter where the server says so; anything else is refused for good. An error of ctx stays what it is.
func Refused(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var known *fault.Error
	if errors.As(err, &known) {
		return err
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the cluster's API server does not answer").WithRetry(time.Second).Because(err)
	}
	message := answer.Status().Message
	for i := range admission {
		a := &admission[i]
		if a.says.MatchString(message) {
			f := fault.New(a.Code, a.Reason, quoted(a.Message, message)).Because(err)
			if a.Code == fault.Unavailable {
				f = f.WithRetry(wait(err))
			}
			return f
		}
	}
	return unadmitted(err, message)
}

func unadmitted(err error, message string) error {
	switch {
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsInternalError(err), apierrors.IsUnexpectedServerError(err):
		return fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the cluster's API server cannot serve the worker now").WithRetry(wait(err)).Because(err)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fault.New(fault.Conflict, fault.ReasonConflict, "something of the same name is being changed in the cluster").WithRetry(time.Second).Because(err)
	case apierrors.IsUnauthorized(err):
		return fault.New(fault.FailedPrecondition, fault.ReasonRuntimeFailed, "the cluster does not accept the worker's credential").Because(err)
	case apierrors.IsForbidden(err):
		return fault.New(fault.FailedPrecondition, fault.ReasonClusterRefused, quoted("the cluster refuses the sandbox", message)).Because(err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return fault.New(fault.FailedPrecondition, fault.ReasonRuntimeFailed, quoted("the cluster finds something of the sandbox invalid", message)).Because(err)
	case apierrors.IsNotFound(err), apierrors.IsGone(err):
		return fault.New(fault.FailedPrecondition, fault.ReasonRuntimeFailed, quoted("something that the sandbox needs is not in the cluster", message)).Because(err)
	}
	return fault.New(fault.Internal, fault.ReasonRuntimeFailed, quoted("the cluster answers with an error", message)).Because(err)
}

// wait is how long the server asks to wait.
func wait(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return time.Second
}
