package fault

import (
	"maps"
	"net/http"
	"slices"
)

// httpStatus is the one place where a Code meets a status of HTTP.
var httpStatus = map[Code]int{
	InvalidArgument:    http.StatusUnprocessableEntity,
	NotFound:           http.StatusNotFound,
	Conflict:           http.StatusConflict,
	Unauthorized:       http.StatusUnauthorized,
	PermissionDenied:   http.StatusForbidden,
	FailedPrecondition: http.StatusConflict,
	ResourceExhausted:  http.StatusTooManyRequests,
	Cancelled:          http.StatusServiceUnavailable, // of a caller who is still there: the server stops
	DeadlineExceeded:   http.StatusGatewayTimeout,
	Unavailable:        http.StatusServiceUnavailable,
	Lost:               http.StatusInternalServerError, // an execute has an answer for it, and no error
	Internal:           http.StatusInternalServerError,
}

// httpReasons are the reasons for which HTTP has a status of its own, or whose code means something else there.
var httpReasons = map[Reason]int{
	ReasonMalformed: http.StatusBadRequest,
	ReasonMediaType: http.StatusUnsupportedMediaType,
	ReasonMethod:    http.StatusMethodNotAllowed,
	// Not 501's usual code of a server that is broken: the caller asks for what is not there.
	ReasonNotImplemented: http.StatusNotImplemented,
	ReasonTooLarge:       http.StatusRequestEntityTooLarge,
	ReasonRange:          http.StatusRequestedRangeNotSatisfiable,
	ReasonCursorExpired:  http.StatusGone,
	// No fault of the caller's, and nothing that it could use less of.
	ReasonNoWorker:      http.StatusServiceUnavailable,
	ReasonUnschedulable: http.StatusServiceUnavailable,
	ReasonLogFull:       http.StatusServiceUnavailable,
	ReasonDiskFull:      http.StatusInsufficientStorage,
	// The gateway is well, and so is the sandbox.
	ReasonPortUnavailable: http.StatusBadGateway,
}

// quotaRetry is the Retry-After of a 429 whose fault names no time, in seconds: place is made by the caller or by expiry.
const quotaRetry = 10

// Problem is the body of a failed call over HTTP.
type Problem struct {
	Error ProblemError `json:"error"`
}

// ProblemError is what a caller gets of a fault.
type ProblemError struct {
	Code    Code   `json:"code"`
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
	// Fields are at most MaxFields, by name.
	Fields []ProblemField `json:"fields,omitempty"`
	// RetryAfterSeconds is that of the header Retry-After; 0: trying again does not help.
	RetryAfterSeconds int32 `json:"retry_after_seconds,omitempty"`
	// Quota is the name of the tenant's quota that is used up, as GET /quota has it.
	Quota string `json:"quota,omitempty"`
	// CorrelationID finds the call in the logs.
	CorrelationID string `json:"correlation_id"`
}

// ProblemField is what is wrong with one field, header or parameter.
type ProblemField struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// HTTP is what a caller of HTTP gets of err, which is not nil: the status and the body; never its cause. A 429 and a 503 always say
// when to try again.
func HTTP(err error, correlation string) (int, Problem) {
	detail, _ := Detail(err)
	reason := Reason(detail.GetReason())
	status, ok := httpReasons[reason]
	if !ok {
		status = httpStatus[Code(detail.GetCode())]
	}
	p := ProblemError{
		Code: Code(detail.GetCode()), Reason: reason, Message: detail.GetMessage(), RetryAfterSeconds: detail.GetRetryAfterSeconds(),
		Quota: detail.GetQuota(), CorrelationID: correlation,
	}
	if p.RetryAfterSeconds == 0 {
		switch status {
		case http.StatusTooManyRequests:
			p.RetryAfterSeconds = quotaRetry
		case http.StatusServiceUnavailable:
			p.RetryAfterSeconds = 1
		}
	}
	for _, field := range slices.Sorted(maps.Keys(detail.GetFields())) {
		p.Fields = append(p.Fields, ProblemField{Field: field, Message: detail.GetFields()[field]})
	}
	return status, Problem{Error: p}
}
