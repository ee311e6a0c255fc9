package fault

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

const (
	// Domain is errdetails.ErrorInfo.domain of every failure.
	Domain = "sandtrail"
	// MaxFields bounds the field violations that are sent; the first ones by name are.
	MaxFields = 32
	// MaxMessage bounds a message, or what is said about a field, in bytes; the rest is cut off.
	MaxMessage = 1024
)

// grpcCodes is the one place where a Code meets a gRPC code.
var grpcCodes = map[Code]codes.Code{
	InvalidArgument:    codes.InvalidArgument,
	NotFound:           codes.NotFound,
	Conflict:           codes.Aborted, // AlreadyExists for the reasons in existing
	Unauthorized:       codes.Unauthenticated,
	PermissionDenied:   codes.PermissionDenied,
	FailedPrecondition: codes.FailedPrecondition,
	ResourceExhausted:  codes.ResourceExhausted,
	Cancelled:          codes.Canceled,
	DeadlineExceeded:   codes.DeadlineExceeded,
	Unavailable:        codes.Unavailable,
	Lost:               codes.DataLoss,
	Internal:           codes.Internal,
}

// existing are the reasons of a Conflict that no retry resolves: the thing is there, and it is another one.
var existing = map[Reason]bool{ReasonIdempotency: true, ReasonExecExists: true}

// foreign maps the gRPC codes that no Code becomes.
var foreign = map[codes.Code]Code{
	codes.AlreadyExists: Conflict,
	codes.OutOfRange:    InvalidArgument,
	codes.Unimplemented: FailedPrecondition,
	codes.Unknown:       Internal,
}

func grpcCode(e *Error) codes.Code {
	if e.Code == Conflict && existing[e.Reason] {
		return codes.AlreadyExists
	}
	if c, ok := grpcCodes[e.Code]; ok {
		return c
	}
	return codes.Internal
}

// known is From that also knows the errors of contexts.
func known(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled):
		return New(Cancelled, ReasonCancelled, "the call was cancelled").Because(err)
	case errors.Is(err, context.DeadlineExceeded):
		return New(DeadlineExceeded, ReasonTimeout, "the call took longer than its deadline").Because(err)
	default:
		return From(err)
	}
}

// Status is what a caller gets of err: never its cause. Its details are ErrorDetail and ErrorInfo (the reason in upper case,
// Domain, and correlation_id and quota in its metadata), with RetryInfo where trying again may help, BadRequest where fields are
// wrong and QuotaFailure where a quota is used up. nil is OK.
func Status(err error, correlation string) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	e := known(err)
	detail, code := Detail(e)
	detail.CorrelationId = correlation
	info := &errdetails.ErrorInfo{Reason: strings.ToUpper(detail.GetReason()), Domain: Domain}
	for name, value := range map[string]string{"correlation_id": correlation, "quota": detail.GetQuota()} {
		if value != "" {
			info.Metadata = withEntry(info.GetMetadata(), name, value)
		}
	}
	details := []protoadapt.MessageV1{detail, info}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if len(detail.GetFields()) > 0 {
		bad := &errdetails.BadRequest{}
		for _, field := range slices.Sorted(maps.Keys(detail.GetFields())) {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: field, Description: detail.GetFields()[field],
			})
		}
		details = append(details, bad)
	}
	if detail.GetQuota() != "" {
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{
			{Subject: "tenant", Description: detail.GetMessage(), QuotaId: detail.GetQuota()},
		}})
	}
	st := status.New(code, detail.GetMessage())
	full, err := st.WithDetails(details...)
	if err != nil {
		// Only a message that does not marshal gets here; the code and the sentence are still right.
		return st
	}
	return full
}

func withEntry(m map[string]string, name, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[name] = value
	return m
}

// Detail is what a caller gets of err, without a correlation id, and its gRPC code. nil gives nil and OK.
func Detail(err error) (*commonv1.ErrorDetail, codes.Code) {
	if err == nil {
		return nil, codes.OK
	}
	e := known(err)
	code := e.Code
	if _, ok := grpcCodes[code]; !ok {
		code = Internal
	}
	d := &commonv1.ErrorDetail{Code: string(code), Reason: cut(string(e.Reason)), Message: cut(e.Message), Quota: cut(e.Quota)}
	for _, field := range slices.Sorted(maps.Keys(e.Fields)) {
		if len(d.Fields) == MaxFields {
			break
		}
		if d.Fields == nil {
			d.Fields = map[string]string{}
		}
		d.Fields[cut(field)] = cut(e.Fields[field])
	}
	if e.RetryAfter > 0 {
		// Rounded up: a caller that waits as long as it was told must not be early.
		seconds := int32(min(math.Ceil(e.RetryAfter.Seconds()), math.MaxInt32))
		d.RetryAfterSeconds = &seconds
	}
	return d, grpcCode(e)
}

// cut bounds a text and makes it valid UTF-8, without which protobuf refuses it.
func cut(s string) string {
	if len(s) > MaxMessage {
		s = s[:MaxMessage]
	}
	return strings.ToValidUTF8(s, "")
}

// FromDetail is the fault that Detail described. A code that this program does not know is Internal; nil gives nil.
func FromDetail(d *commonv1.ErrorDetail) *Error {
	if d == nil {
		return nil
	}
	e := New(Code(d.GetCode()), Reason(d.GetReason()), d.GetMessage())
	if _, ok := grpcCodes[e.Code]; !ok {
		e.Code = Internal
	}
	if len(d.GetFields()) > 0 {
		e.Fields = maps.Clone(d.GetFields())
	}
	e.RetryAfter, e.Quota = time.Duration(max(0, d.GetRetryAfterSeconds()))*time.Second, d.GetQuota()
	return e
}

// FromStatus is the fault in an error that a gRPC call returned. A status without ErrorDetail, of a proxy or of gRPC itself, has
// the Code that is nearest and its own sentence; an error that is none is what From says. nil gives nil.
func FromStatus(err error) *Error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return known(err)
	}
	if st.Code() == codes.OK {
		return nil
	}
	var e *Error
	var retry time.Duration
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *commonv1.ErrorDetail:
			e = FromDetail(d)
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	if e == nil {
		e = plain(st)
	}
	if retry > 0 {
		e.RetryAfter = retry
	}
	return e.Because(err)
}

// plain is the fault of a status that carries no ErrorDetail.
func plain(st *status.Status) *Error {
	code, ok := foreign[st.Code()]
	if !ok {
		code = Internal
		for c, g := range grpcCodes {
			if g == st.Code() {
				code = c
			}
		}
	}
	reason := ReasonInternal
	switch code {
	case InvalidArgument:
		reason = ReasonValidation
	case Cancelled:
		reason = ReasonCancelled
	case DeadlineExceeded:
		reason = ReasonTimeout
	case Unavailable, NotFound, Conflict, Unauthorized, PermissionDenied, FailedPrecondition, ResourceExhausted, Lost:
		reason = Reason(code)
	case Internal:
	}
	return New(code, reason, st.Message())
}
