package fault_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sandtrail/sandtrail/libs/fault"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

var all = map[fault.Code]codes.Code{
	fault.InvalidArgument:    codes.InvalidArgument,
	fault.NotFound:           codes.NotFound,
	fault.Conflict:           codes.Aborted,
	fault.Unauthorized:       codes.Unauthenticated,
	fault.PermissionDenied:   codes.PermissionDenied,
	fault.FailedPrecondition: codes.FailedPrecondition,
	fault.ResourceExhausted:  codes.ResourceExhausted,
	fault.Cancelled:          codes.Canceled,
	fault.DeadlineExceeded:   codes.DeadlineExceeded,
	fault.Unavailable:        codes.Unavailable,
	fault.Lost:               codes.DataLoss,
	fault.Internal:           codes.Internal,
}

func TestStatusRoundTrip(t *testing.T) {
	const secret = "dial tcp 10.0.0.7: password hunter2"
	for code, want := range all {
		e := fault.New(code, "some_reason", "A sentence.").
			WithFields(map[string]string{"spec.image": "is required", "env[0].name": "is empty"}).
			WithRetry(1500 * time.Millisecond).Because(errors.New(secret))
		st := fault.Status(fmt.Errorf("create sandbox: %w", e), "c-1")
		require.Equal(t, want, st.Code(), code)
		require.Equal(t, "A sentence.", st.Message())
		require.NotContains(t, prototext.Format(st.Proto()), "hunter2")

		back := fault.FromStatus(st.Err())
		require.Equal(t, code, back.Code)
		require.Equal(t, e.Reason, back.Reason)
		require.Equal(t, e.Message, back.Message)
		require.Equal(t, e.Fields, back.Fields)
		require.Equal(t, e.RetryAfter, back.RetryAfter)

		d, got := fault.Detail(e)
		require.Equal(t, want, got)
		require.EqualValues(t, 2, d.GetRetryAfterSeconds(), "rounded up")
		require.Equal(t, code, fault.FromDetail(d).Code)
	}
}

func TestStatusDetails(t *testing.T) {
	e := fault.New(fault.InvalidArgument, fault.ReasonValidation, "no").WithFields(map[string]string{"b": "2", "a": "1"}).
		WithRetry(time.Second)
	var (
		detail *commonv1.ErrorDetail
		info   *errdetails.ErrorInfo
		retry  *errdetails.RetryInfo
		bad    *errdetails.BadRequest
	)
	for _, d := range fault.Status(e, "c-1").Details() {
		switch d := d.(type) {
		case *commonv1.ErrorDetail:
			detail = d
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.BadRequest:
			bad = d
		}
	}
	require.Equal(t, "c-1", detail.GetCorrelationId())
	require.Equal(t, "VALIDATION", info.GetReason())
	require.Equal(t, "sandtrail", info.GetDomain())
	require.Equal(t, "c-1", info.GetMetadata()["correlation_id"])
	require.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
	require.Len(t, bad.GetFieldViolations(), 2)
	require.Equal(t, "a", bad.GetFieldViolations()[0].GetField())
}

func TestConflictThatARetryCannotResolve(t *testing.T) {
	for _, r := range []fault.Reason{fault.ReasonIdempotency, fault.ReasonExecExists} {
		st := fault.Status(fault.New(fault.Conflict, r, "no"), "")
		require.Equal(t, codes.AlreadyExists, st.Code())
		require.Equal(t, fault.Conflict, fault.FromStatus(st.Err()).Code)
	}
}

func TestErrorsThatAreNoFaults(t *testing.T) {
	st := fault.Status(errors.New("pq: password hunter2"), "c-1")
	require.Equal(t, codes.Internal, st.Code())
	require.NotContains(t, prototext.Format(st.Proto()), "hunter2")
	require.Equal(t, codes.Canceled, fault.Status(fmt.Errorf("x: %w", context.Canceled), "").Code())
	require.Equal(t, codes.DeadlineExceeded, fault.Status(context.DeadlineExceeded, "").Code())
	require.Equal(t, codes.Internal, fault.Status(fault.New("from_the_future", "x", "y"), "").Code())

	require.Equal(t, codes.OK, fault.Status(nil, "").Code())
	d, code := fault.Detail(nil)
	require.Nil(t, d)
	require.Equal(t, codes.OK, code)
	require.Nil(t, fault.FromDetail(nil))
	require.Nil(t, fault.FromStatus(nil))

	require.Equal(t, fault.Internal, fault.FromDetail(&commonv1.ErrorDetail{Code: "from_the_future"}).Code)
	require.Equal(t, fault.Internal, fault.FromStatus(errors.New("no status")).Code)
}

func TestStatusOfOthers(t *testing.T) {
	for grpc, want := range map[codes.Code]fault.Code{
		codes.Unavailable: fault.Unavailable, codes.AlreadyExists: fault.Conflict, codes.Aborted: fault.Conflict,
		codes.Unknown: fault.Internal, codes.OutOfRange: fault.InvalidArgument, codes.Unimplemented: fault.FailedPrecondition,
		codes.Unauthenticated: fault.Unauthorized, codes.DataLoss: fault.Lost,
	} {
		e := fault.FromStatus(status.Error(grpc, "a sentence"))
		require.Equal(t, want, e.Code, grpc)
		require.Equal(t, "a sentence", e.Message)
	}
}

func TestDetailIsBounded(t *testing.T) {
	fields := map[string]string{}
	for i := range 1000 {
		fields[fmt.Sprintf("f%04d", i)] = strings.Repeat("x", 10_000)
	}
	d, _ := fault.Detail(fault.New(fault.InvalidArgument, fault.ReasonValidation, strings.Repeat("é", 10_000)+"\xff").
		WithFields(fields))
	require.Len(t, d.GetFields(), fault.MaxFields)
	require.Len(t, d.GetFields()["f0000"], fault.MaxMessage)
	require.LessOrEqual(t, len(d.GetMessage()), fault.MaxMessage)
	st := fault.Status(fault.New(fault.Internal, fault.ReasonInternal, "bad \xff byte"), "")
	require.Len(t, st.Details(), 2, "what is not UTF-8 does not cost the details")
}

func TestAQuotaIsNamedEverywhere(t *testing.T) {
	e := fault.New(fault.ResourceExhausted, fault.ReasonQuota, "no more").WithQuota("sandboxes").WithRetry(time.Second)
	st := fault.Status(e, "c-1")
	require.Equal(t, "sandboxes", fault.FromStatus(st.Err()).Quota)
	d, _ := fault.Detail(e)
	require.Equal(t, "sandboxes", fault.FromDetail(d).Quota)
	text := prototext.Format(st.Proto())
	require.Contains(t, text, "google.rpc.QuotaFailure")
	status, problem := fault.HTTP(e, "c-1")
	require.Equal(t, 429, status)
	require.Equal(t, "sandboxes", problem.Error.Quota)
	require.NotContains(t, prototext.Format(fault.Status(fault.New(fault.Internal, fault.ReasonInternal, "x"), "").Proto()), "QuotaFailure")
}
