// Package fault is the one kind of error that crosses a service's edge: a code, a reason a program can switch on, a sentence
// that is safe to show to anybody, and whether trying again may help. What caused it stays inside, for the logs.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// Code says what kind of failure it is. Its text is common.v1.ErrorDetail.code.
type Code string

const (
	InvalidArgument    Code = "invalid_argument"
	NotFound           Code = "not_found"
	Conflict           Code = "conflict"
	Unauthorized       Code = "unauthorized"
	PermissionDenied   Code = "permission_denied"
	FailedPrecondition Code = "failed_precondition"
	ResourceExhausted  Code = "resource_exhausted"
	Cancelled          Code = "cancelled"
	DeadlineExceeded   Code = "deadline_exceeded"
	Unavailable        Code = "unavailable"
	// Lost: the outcome cannot be known. Never a reason to run anything again.
	Lost     Code = "lost"
	Internal Code = "internal"
)

// Reason is the machine-readable cause, stable once published.
type Reason string

const (
	ReasonValidation         Reason = "validation"
	ReasonSandboxNotFound    Reason = "sandbox_not_found"
	ReasonSandboxFailed      Reason = "sandbox_failed"
	ReasonSandboxDestroyed   Reason = "sandbox_destroyed"
	ReasonSandboxStopped     Reason = "sandbox_stopped"
	ReasonSandboxExpired     Reason = "sandbox_expired"
	ReasonSandboxLost        Reason = "sandbox_lost"
	ReasonNameTaken          Reason = "name_taken"
	ReasonJobNotFound        Reason = "job_not_found"
	ReasonWorkerNotFound     Reason = "worker_not_found"
	ReasonWorkerOffline      Reason = "worker_offline"
	ReasonExecNotFound       Reason = "exec_not_found"
	ReasonExecLost           Reason = "exec_lost"
	ReasonExecExists         Reason = "exec_exists"
	ReasonStartFailed        Reason = "start_failed"
	ReasonCommandNotFound    Reason = "command_not_found"
	ReasonNotExecutable      Reason = "not_executable"
	ReasonImageNotFound      Reason = "image_not_found"
	ReasonImagePullFailed    Reason = "image_pull_failed"
	ReasonImageInvalid       Reason = "image_invalid"
	ReasonRuntimeFailed      Reason = "runtime_failed"
	ReasonStartDeadline      Reason = "start_deadline"
	ReasonNoWorker           Reason = "no_worker"
	ReasonQuota              Reason = "quota"
	ReasonBudgetExhausted    Reason = "budget_exhausted"
	ReasonUnschedulable      Reason = "unschedulable"
	ReasonClusterRefused     Reason = "cluster_refused"
	ReasonVolumeFailed       Reason = "volume_failed"
	ReasonOutOfMemory        Reason = "out_of_memory"
	ReasonEvicted            Reason = "evicted"
	ReasonNodeLost           Reason = "node_lost"
	ReasonTooManyExecs       Reason = "too_many_execs"
	ReasonTooManyCalls       Reason = "too_many_calls"
	ReasonPathEscapes        Reason = "path_escapes"
	ReasonPathNotFound       Reason = "path_not_found"
	ReasonPathNotFile        Reason = "path_not_file"
	ReasonPathNotDirectory   Reason = "path_not_directory"
	ReasonPathNotEmpty       Reason = "path_not_empty"
	ReasonRange              Reason = "range_not_satisfiable"
	ReasonDigest             Reason = "digest_mismatch"
	ReasonDiskFull           Reason = "disk_full"
	ReasonTooLarge           Reason = "too_large"
	ReasonKeyInvalid         Reason = "key_invalid"
	ReasonKeyMissing         Reason = "key_missing"
	ReasonTokenExpired       Reason = "token_expired"
	ReasonIssuer             Reason = "issuer_unavailable"
	ReasonTenantMismatch     Reason = "tenant_mismatch"
	ReasonTenantNotFound     Reason = "tenant_not_found"
	ReasonWebhookNotFound    Reason = "webhook_not_found"
	ReasonSubscriberNotFound Reason = "subscriber_not_found"
	ReasonUndelivered        Reason = "undelivered"
	ReasonKeyNotFound        Reason = "key_not_found"
	ReasonScope              Reason = "scope_missing"
	ReasonMalformed          Reason = "malformed_request"
	ReasonMediaType          Reason = "unsupported_media_type"
	ReasonRouteNotFound      Reason = "route_not_found"
	ReasonMethod             Reason = "method_not_allowed"
	ReasonNotImplemented     Reason = "not_implemented"
	ReasonOrigin             Reason = "origin_not_allowed"
	ReasonSessionNotFound    Reason = "session_not_found"
	ReasonIdempotency        Reason = "idempotency_mismatch"
	ReasonCursorExpired      Reason = "cursor_expired"
	ReasonConflict           Reason = "concurrent_change"
	ReasonLogUnavailable     Reason = "log_unavailable"
	ReasonLogFull            Reason = "log_full"
	ReasonWorkerUnavailable  Reason = "worker_unavailable"
	ReasonToolboxUnavailable Reason = "toolbox_unavailable"
	ReasonPortUnavailable    Reason = "port_unavailable"
	ReasonTimeout            Reason = "timeout"
	ReasonCancelled          Reason = "cancelled"
	ReasonDeadLetterNotFound Reason = "dead_letter_not_found"
	ReasonEventNotFound      Reason = "event_not_found"
	ReasonAuditDamaged       Reason = "audit_damaged"
	ReasonUnknownEvent       Reason = "unknown_event"
	ReasonIllegalState       Reason = "illegal_state"
	ReasonInternal           Reason = "internal"
)

// Error is a failure with what a caller may know of it.
type Error struct {
	Code   Code
	Reason Reason
	// Message is one sentence that holds no secret and nothing internal.
	Message string
	// Fields maps a field path of the request to what is wrong with it.
	Fields map[string]string
	// RetryAfter is set where the same call may succeed later.
	RetryAfter time.Duration
	// Quota is the name of the tenant's quota that is used up; empty for everything else.
	Quota string
	cause error
}

// New makes an error whose message is safe to show.
func New(code Code, reason Reason, message string) *Error {
	return &Error{Code: code, Reason: reason, Message: message}
}

// Newf is New with a format; its arguments must be safe to show.
func Newf(code Code, reason Reason, format string, args ...any) *Error {
	return New(code, reason, fmt.Sprintf(format, args...))
}

// Because adds what caused it, for logs and errors.Is; the caller never sees it.
func (e *Error) Because(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

// WithFields adds field violations.
func (e *Error) WithFields(fields map[string]string) *Error {
	c := *e
	c.Fields = fields
	return &c
}

// WithRetry says after which time trying again may help.
func (e *Error) WithRetry(after time.Duration) *Error {
	c := *e
	c.RetryAfter = after
	return &c
}

// WithQuota names the tenant's quota that is used up.
func (e *Error) WithQuota(name string) *Error {
	c := *e
	c.Quota = name
	return &c
}

// Error gives the whole text, cause included: for logs, not for callers.
func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Reason, e.Message, e.cause)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

func (e *Error) Unwrap() error { return e.cause }

// From returns the fault in err's chain. Any other error becomes Internal with err as its hidden cause; nil stays nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return New(Internal, ReasonInternal, "something went wrong on our side; the correlation id leads to it").Because(err)
}

// Is reports whether err is a fault with the reason.
func Is(err error, reason Reason) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == reason
}

// CodeOf returns the code of the fault in err's chain, Internal for any other error, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}
