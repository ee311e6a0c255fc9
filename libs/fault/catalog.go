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

var catalog = []Entry{
	{
		ReasonValidation,
		[]Code{InvalidArgument, FailedPrecondition},
		RetryNever,
		"the request breaks a rule, or cannot be read at all; `fields` says what and where (failed_precondition: the configuration of a service does)", "correct it",
	},
	{
		ReasonTooLarge,
		[]Code{InvalidArgument, ResourceExhausted, FailedPrecondition},
		RetryNever,
		"it is over a size that the message names", "send less, or in parts",
	},
	{
		ReasonKeyMissing,
		[]Code{Unauthorized, PermissionDenied},
		RetryNever,
		"there is no credential (permission_denied: and the call comes from where one is needed)", "send `authorization: ApiKey KEY`",
	},
	{
		ReasonKeyInvalid,
		[]Code{Unauthorized},
		RetryNever,
		"the credential is not known, or its time is over", "send `authorization: ApiKey KEY` with a valid key, or `Bearer JWT` where tokens are taken",
	},
	{
		ReasonTokenExpired,
		[]Code{Unauthorized},
		RetryNever,
		"the JWT is a good one whose time is over", "get a new token from its issuer, and repeat the request with the same idempotency key",
	},
	{
		ReasonIssuer,
		[]Code{Unavailable},
		RetryLater,
		"the issuer of the JWT cannot be asked for its keys", "try again",
	},
	{
		ReasonTenantMismatch,
		[]Code{PermissionDenied},
		RetryNever,
		"`tenant_id` is not the credential's tenant", "leave it out",
	},
	{
		ReasonScope,
		[]Code{PermissionDenied},
		RetryNever,
		"the credential does not have a scope that the call needs; the message names it", "use a key with that scope",
	},
	{
		ReasonTenantNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such tenant", "create it: `sandtrail tenant create`",
	},
	{
		ReasonKeyNotFound,
		[]Code{NotFound},
		RetryNever,
		"the tenant has no such key", "list them: `sandtrail key ls`",
	},
	{
		ReasonWebhookNotFound,
		[]Code{NotFound},
		RetryNever,
		"the tenant has no such webhook, or it was deleted", "list them: `sandtrail webhook ls`",
	},
	{
		ReasonSubscriberNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no subscriber of this name", "list them: `sandtrail subscriber ls`",
	},
	{
		ReasonUndelivered,
		[]Code{Unavailable},
		RetryLater,
		"a webhook did not take a message; the message says why", "mend the endpoint; redrive the dead letter, or replay",
	},
	{
		ReasonMalformed,
		[]Code{InvalidArgument},
		RetryNever,
		"the body is not JSON of the form that the route takes, or its end did not come", "correct it",
	},
	{
		ReasonMediaType,
		[]Code{InvalidArgument},
		RetryNever,
		"the body is of a type that the route does not take", "send the `Content-Type` that the message names",
	},
	{
		ReasonRouteNotFound,
		[]Code{NotFound},
		RetryNever,
		"no route has this path", "look into `/api/v1/openapi.json`",
	},
	{
		ReasonMethod,
		[]Code{FailedPrecondition},
		RetryNever,
		"the path is there, and not with this method", "use one of those in the header `Allow`",
	},
	{
		ReasonNotImplemented,
		[]Code{FailedPrecondition},
		RetryNever,
		"the route is published and cannot be served yet; the message says what is missing", "do without it",
	},
	{
		ReasonOrigin,
		[]Code{PermissionDenied},
		RetryNever,
		"a browser calls from an origin that is not let in", "have the operator add it to `--cors-origins`",
	},
	{
		ReasonSessionNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such MCP session, its time is over, or another key opened it", "initialize a new one",
	},
	{
		ReasonIdempotency,
		[]Code{Conflict},
		RetryNever,
		"the idempotency key was used with another request", "use a new key",
	},

	{
		ReasonSandboxNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such sandbox, or it is another tenant's", "check the id",
	},
	{
		ReasonNameTaken,
		[]Code{Conflict},
		RetryNever,
		"another sandbox of the tenant has the name, or another subscriber", "delete it first, or take another name",
	},
	{
		ReasonJobNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such job, or it is another tenant's", "check the id",
	},
	{
		ReasonWorkerNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such worker, or it was not heard of for a minute", "list them",
	},
	{
		ReasonExecNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such exec, or it is another tenant's", "check the id",
	},
	{
		ReasonExecExists,
		[]Code{Conflict},
		RetryNever,
		"the exec's id was used for another command", "use another id",
	},
	{
		ReasonSandboxFailed,
		[]Code{FailedPrecondition},
		RetryNever,
		"the sandbox did not start, or ended by itself; the message says why", "create another one",
	},
	{
		ReasonSandboxDestroyed,
		[]Code{FailedPrecondition},
		RetryNever,
		"somebody asked for the sandbox's end", "create another one",
	},
	{
		ReasonSandboxStopped,
		[]Code{FailedPrecondition},
		RetryNever,
		"the sandbox is stopped, or is being stopped: its files are kept and nothing runs in it", "start it",
	},
	{
		ReasonSandboxExpired,
		[]Code{FailedPrecondition},
		RetryNever,
		"the sandbox's time was over", "create another one, with a longer `max_runtime`",
	},
	{
		ReasonSandboxLost,
		[]Code{FailedPrecondition, Unavailable},
		RetryNever,
		"the sandbox is no longer there and nobody ended it", "create another one; look at the worker",
	},
	{
		ReasonOutOfMemory,
		[]Code{ResourceExhausted},
		RetryNever,
		"the sandbox used more memory than it has, and was ended", "create another one, with more `memory_bytes`",
	},
	{
		ReasonEvicted,
		[]Code{Unavailable},
		RetryLater,
		"the cluster took the sandbox off its node: the node ran short, is emptied, or the place was needed for something more important", "create another one",
	},
	{
		ReasonNodeLost,
		[]Code{Unavailable},
		RetryLater,
		"the sandbox's node does not answer any more", "create another one; look at the node",
	},
	{
		ReasonIllegalState,
		[]Code{FailedPrecondition, Conflict},
		RetryNever,
		"that cannot be done in this state", "ask for the state",
	},

	{
		ReasonNoWorker,
		[]Code{Unavailable, ResourceExhausted},
		RetryLater,
		"no worker reports, none has room, or none has taken the create yet", "try again; look at the workers",
	},
	{
		ReasonQuota,
		[]Code{ResourceExhausted},
		RetryDepends,
		"a limit of the tenant, the worker or the sandbox is reached; the message names it, and `quota` does where it is the tenant's", "end something, wait, or have it raised: `sandtrail quota set`",
	},
	{
		ReasonBudgetExhausted,
		[]Code{ResourceExhausted},
		RetryLater,
		"the month of the tenant costs as much as its budget allows, and that refuses new work", "wait until the time in the answer, or have the budget raised or removed: `sandtrail budget set`",
	},
	{
		ReasonUnschedulable,
		[]Code{ResourceExhausted, FailedPrecondition},
		RetryLater,
		"no node of the cluster takes the sandbox; the message has the scheduler's reasons", "ask for less, wait for room, or have nodes added",
	},
	{
		ReasonClusterRefused,
		[]Code{FailedPrecondition, Unavailable},
		RetryDepends,
		"a policy or a webhook of the cluster does not let the sandbox in, or cannot be asked; the message has its words", "ask the operator of the cluster",
	},
	{
		ReasonVolumeFailed,
		[]Code{Unavailable, FailedPrecondition},
		RetryDepends,
		"the volume of the workspace cannot be made, found or mounted; the message says why", "check the storage class; look at the claim",
	},
	{
		ReasonImageNotFound,
		[]Code{NotFound},
		RetryNever,
		"the registry does not have the image", "check the reference",
	},
	{
		ReasonImageInvalid,
		[]Code{FailedPrecondition, InvalidArgument},
		RetryNever,
		"the reference is none, or what the registry gave is no image that can run here; the message says why", "use another image",
	},
	{
		ReasonImagePullFailed,
		[]Code{Unavailable, FailedPrecondition},
		RetryDepends,
		"the registry did not answer properly, or refuses access", "try again, or make the image public",
	},
	{
		ReasonRuntimeFailed,
		[]Code{Internal, FailedPrecondition, Unavailable},
		RetryDepends,
		"the worker could not start the sandbox", "run `sandtrail doctor` on the worker; in a cluster the message says what to look at",
	},
	{
		ReasonStartDeadline,
		[]Code{DeadlineExceeded},
		RetryLater,
		"the sandbox did not become ready in time", "try again",
	},

	{
		ReasonTooManyExecs,
		[]Code{ResourceExhausted},
		RetryLater,
		"too many commands run at once in the sandbox or on the worker", "try again",
	},
	{
		ReasonTooManyCalls,
		[]Code{ResourceExhausted},
		RetryLater,
		"too many creates and ends of the tenant's sandboxes wait at this gateway, or too many connections to ports of a sandbox are open", "try again, with fewer at once",
	},
	{
		ReasonStartFailed,
		[]Code{InvalidArgument, FailedPrecondition},
		RetryNever,
		"the command could not be started; the message says why", "correct it",
	},
	{
		ReasonCommandNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such program: the exec has exit code 127", "check the command",
	},
	{
		ReasonNotExecutable,
		[]Code{PermissionDenied},
		RetryNever,
		"the file is no program: the exec has exit code 126", "check the command",
	},
	{
		ReasonExecLost,
		[]Code{Lost},
		RetryNever,
		"the outcome cannot be known; the command may have run", "read the receipt; do not simply run it again",
	},
	{
		ReasonCursorExpired,
		[]Code{FailedPrecondition},
		RetryNever,
		"what the cursor points to is no longer kept; the message has the oldest position", "go on from there",
	},

	{
		ReasonPathEscapes,
		[]Code{PermissionDenied},
		RetryNever,
		"the path leaves the workspace, also through a link", "stay inside",
	},
	{
		ReasonPathNotFound,
		[]Code{NotFound},
		RetryNever,
		"nothing is at the path", "check the path",
	},
	{
		ReasonPathNotFile,
		[]Code{FailedPrecondition, PermissionDenied},
		RetryNever,
		"what is at the path is no regular file, or may not be opened", "check the path",
	},
	{
		ReasonPathNotDirectory,
		[]Code{FailedPrecondition},
		RetryNever,
		"what is at the path, or on the way to it, is no directory", "check the path",
	},
	{
		ReasonPathNotEmpty,
		[]Code{FailedPrecondition},
		RetryNever,
		"the directory that is to be removed is not empty", "remove what is in it first, or ask for that too (`recursive`)",
	},
	{
		ReasonRange,
		[]Code{InvalidArgument},
		RetryNever,
		"the range begins behind the end of the file; `Content-Range` says where that is", "ask for less, or for all of it",
	},
	{
		ReasonDigest,
		[]Code{InvalidArgument},
		RetryLater,
		"the bytes that came are not those whose digest came with them; nothing was written", "send them again",
	},
	{
		ReasonDiskFull,
		[]Code{ResourceExhausted},
		RetryNever,
		"the workspace or the host's disk is full", "make room",
	},

	{
		ReasonConflict,
		[]Code{Conflict, Unavailable, FailedPrecondition},
		RetryLater,
		"somebody else changed, or changes, the same thing", "try again",
	},
	{
		ReasonLogUnavailable,
		[]Code{Unavailable},
		RetryKeyed,
		"the log cannot be reached; whether a mutation happened is open", "repeat it with the same idempotency key",
	},
	{
		ReasonLogFull,
		[]Code{ResourceExhausted},
		RetryNever,
		"the log refuses for lack of room; nothing was accepted", "tell the operator",
	},
	{
		ReasonWorkerUnavailable,
		[]Code{Unavailable, FailedPrecondition},
		RetryLater,
		"the sandbox's worker, or the usage service, does not answer", "try again; the receipt tells what became of an exec",
	},
	{
		ReasonToolboxUnavailable,
		[]Code{Unavailable},
		RetryLater,
		"the sandbox's keeper does not answer: the sandbox is starting, or on its way out", "try again; the receipt tells what became of an exec",
	},
	{
		ReasonPortUnavailable,
		[]Code{Unavailable},
		RetryLater,
		"nothing listens at the port of the sandbox, or what does gave no answer of HTTP", "start the program; it must listen at 127.0.0.1 or at all addresses",
	},
	{
		ReasonTimeout,
		[]Code{DeadlineExceeded, Unavailable},
		RetryKeyed,
		"the call's own time was over, or what it waits for took too long", "ask for the state",
	},
	{
		ReasonCancelled,
		[]Code{Cancelled},
		RetryKeyed,
		"the caller went away", "ask for the state",
	},
	{
		ReasonDeadLetterNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no such dead letter", "list them",
	},
	{
		ReasonEventNotFound,
		[]Code{NotFound},
		RetryNever,
		"there is no event with this sequence", "check the sequence",
	},
	{
		ReasonAuditDamaged,
		[]Code{FailedPrecondition},
		RetryNever,
		"the log, or an export of it, is not what was recorded; the message says where", "run `sandtrail audit verify`",
	},
	{
		ReasonUnknownEvent,
		[]Code{Internal},
		RetryNever,
		"the log holds an event that is newer than this program", "upgrade",
	},
	{
		ReasonInternal,
		[]Code{Internal, Unavailable},
		RetryDepends,
		"something went wrong on our side", "report it with the correlation id",
	},
}
