package fault

import (
	"slices"

	"google.golang.org/grpc/codes"
)

// Retry says whether the same call may succeed later.
type Retry string

const (
	// RetryNever: the same call fails again until something else was changed.
	RetryNever Retry = "no"
	// RetryLater: wait as long as retry_after_seconds says, or a moment where it says nothing.
	RetryLater Retry = "yes"
	// RetryKeyed: whether it happened is open, so only with the same idempotency key.
	RetryKeyed Retry = "with the same idempotency key"
	// RetryDepends: where retry_after_seconds is set.
	RetryDepends Retry = "where `retry_after_seconds` is set"
)

// Entry is what a caller has to know of a reason. Texts are Markdown.
type Entry struct {
	Reason Reason
	// Codes that it comes with, the commonest first.
	Codes []Code
	Retry Retry
	// Means completes "the call failed because …"; Do is what helps.
	Means, Do string
}

// GRPC are the gRPC codes that the reason comes with, in the order of Codes.
func (e Entry) GRPC() []codes.Code {
	var all []codes.Code
	for _, c := range e.Codes {
		if g := grpcCode(New(c, e.Reason, "")); !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

// Catalog has every reason once, in the order in which callers look for them: the request, the caller, things that are named,
// what happened to them, the host, the log.
func Catalog() []Entry { return slices.Clone(catalog) }
