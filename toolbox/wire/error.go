package wire

import (
	"errors"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// Error is a failed call: what a toolbox answers in place of a reply. Code and Reason are those of common.v1.ErrorDetail;
// Message is safe to show to the tenant.
type Error struct {
	Code    string
	Reason  string
	Message string
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Reason
	}
	return e.Message
}

// Is reports equal codes and reasons, so that errors.Is works against an Error without a message.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Reason == e.Reason
}

// NewError returns an Error.
func NewError(code, reason, message string) *Error {
	return &Error{Code: code, Reason: reason, Message: message}
}

// elsewhere is how a toolbox answers a call that is meant for another one.
var elsewhere = Error{Code: "not_found", Reason: "sandbox_not_found", Message: "the call is meant for another sandbox"}

// Elsewhere is the answer to a call that is meant for another toolbox.
func Elsewhere() *Error { e := elsewhere; return &e }

// IsElsewhere reports whether an answer is Elsewhere. No call has it as an answer of its own.
func IsElsewhere(e *toolboxv1.Error) bool {
	return e.GetCode() == elsewhere.Code && e.GetReason() == elsewhere.Reason
}

// FromProto is the Error of an answer; nil for nil.
func FromProto(e *toolboxv1.Error) *Error {
	if e == nil {
		return nil
	}
	return &Error{Code: e.Code, Reason: e.Reason, Message: e.Message}
}

// ToProto is how err is answered: an Error in its chain as it is, anything else as internal without its text, which may
// hold host paths.
func ToProto(err error) *toolboxv1.Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return &toolboxv1.Error{Code: e.Code, Reason: e.Reason, Message: e.Message}
	case errors.Is(err, ErrTooLarge):
		return &toolboxv1.Error{Code: "resource_exhausted", Reason: "too_large", Message: "the answer is over 1 MiB"}
	}
	return &toolboxv1.Error{Code: "internal", Reason: "internal", Message: "the toolbox failed"}
}
