package diagnosis

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sandtrail/sandtrail/libs/fault"
)

var pods = schema.GroupResource{Resource: "pods"}

func forbidden(why string) error { return apierrors.NewForbidden(pods, podName, errors.New(why)) }

func answered(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}} //nolint:gosec // codes are small
}

func TestWhatAnAPIServerRefusesHasAReason(t *testing.T) {
	for _, c := range []struct {
		err    error
		reason fault.Reason
		code   fault.Code
		says   string
	}{
		{forbidden("exceeded quota: boxes, requested: pods=1, used: pods=10, limited: pods=10"), fault.ReasonQuota, fault.ResourceExhausted, "pods=10"},
		{forbidden("status unknown for quota: boxes, resources: pods"), fault.ReasonWorkerUnavailable, fault.Unavailable, "not counted yet"},
		{forbidden("failed quota: boxes: must specify limits.cpu for: sandbox"), fault.ReasonQuota, fault.ResourceExhausted, "limits.cpu"},
		{forbidden("maximum memory usage per Container is 1Gi, but limit is 2Gi"), fault.ReasonQuota, fault.ResourceExhausted, "1Gi"},
		{forbidden(`violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`), fault.ReasonClusterRefused, fault.FailedPrecondition, "Pod Security"},
		{forbidden(`pod rejected: RuntimeClass "gvisor" not found`), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "install gVisor"},
		{forbidden("no PriorityClass with name sandbox was found"), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "priority class"},
		{forbidden(`error looking up service account boxes/default: serviceaccount "default" not found`), fault.ReasonRuntimeFailed, fault.Unavailable, "not ready"},
		{forbidden(`unable to create new content in namespace boxes because it is being terminated`), fault.ReasonClusterRefused, fault.FailedPrecondition, "being deleted"},
		{forbidden(`ValidatingAdmissionPolicy 'images' with binding 'all' denied request: only our registry`), fault.ReasonClusterRefused, fault.FailedPrecondition, "only our registry"},
		{forbidden("the moon is in the wrong phase"), fault.ReasonClusterRefused, fault.FailedPrecondition, "moon"},
		{answered(http.StatusForbidden, metav1.StatusReasonForbidden, `pods is forbidden: User "system:serviceaccount:st:worker" cannot create resource "pods" in API group "" in the namespace "boxes"`), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "lacks a permission"},
		{answered(http.StatusBadRequest, "", `admission webhook "images.example.com" denied the request: not signed`), fault.ReasonClusterRefused, fault.FailedPrecondition, "not signed"},
		{answered(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "images.example.com" denied the request: no`), fault.ReasonClusterRefused, fault.FailedPrecondition, "a webhook of the cluster refuses"},
		{apierrors.NewInternalError(errors.New(`failed calling webhook "images.example.com": failed to call webhook: Post "https://images.st.svc:443/x?timeout=10s": dial tcp 10.96.1.1:443: connect: connection refused`)), fault.ReasonClusterRefused, fault.Unavailable, "does not answer"},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "boxes"), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "does not exist"},
		{apierrors.NewNotFound(pods, podName), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "not in the cluster"},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, podName, nil), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "invalid"},
		{apierrors.NewAlreadyExists(pods, podName), fault.ReasonConflict, fault.Conflict, ""},
		{apierrors.NewConflict(pods, podName, errors.New("x")), fault.ReasonConflict, fault.Conflict, ""},
		{apierrors.NewUnauthorized("no"), fault.ReasonRuntimeFailed, fault.FailedPrecondition, "credential"},
		{apierrors.NewTooManyRequests("slow down", 7), fault.ReasonWorkerUnavailable, fault.Unavailable, ""},
		{apierrors.NewServerTimeout(pods, "create", 1), fault.ReasonWorkerUnavailable, fault.Unavailable, ""},
		{apierrors.NewServiceUnavailable("etcd"), fault.ReasonWorkerUnavailable, fault.Unavailable, ""},
		{apierrors.NewInternalError(errors.New("etcdserver: request timed out")), fault.ReasonWorkerUnavailable, fault.Unavailable, ""},
		{answered(http.StatusTeapot, "Teapot", "I am a teapot"), fault.ReasonRuntimeFailed, fault.Internal, "teapot"},
		{errors.New("dial tcp 10.0.0.1:6443: connect: connection refused"), fault.ReasonWorkerUnavailable, fault.Unavailable, ""},
	} {
		f := fault.From(Refused(c.err))
		require.Equal(t, c.reason, f.Reason, "%v", c.err)
		require.Equal(t, c.code, f.Code, "%v", c.err)
		require.Contains(t, f.Message, c.says)
		require.NotContains(t, f.Message, "10.", "%v", c.err)
		require.ErrorIs(t, f, c.err)
		require.Equal(t, c.code == fault.Unavailable || c.code == fault.Conflict, f.RetryAfter > 0, "%v", c.err)
		i := slices.IndexFunc(fault.Catalog(), func(e fault.Entry) bool { return e.Reason == f.Reason })
		require.Contains(t, fault.Catalog()[i].Codes, f.Code, f.Reason)
	}
	require.NoError(t, Refused(nil))
	require.Equal(t, 7*time.Second, fault.From(Refused(apierrors.NewTooManyRequests("slow down", 7))).RetryAfter)
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, fault.New(fault.Conflict, fault.ReasonConflict, "x")} {
		require.Equal(t, err, Refused(err))
	}
}
