package httpapi

import (
	"net/http"

	"github.com/sandtrail/sandtrail/libs/tenant"
)

const (
	// maxBody is the most bytes of a create or execute: 512 KiB of stdin in which JSON escapes every byte, and the rest.
	maxBody = 4 << 20
	// maxUpload is the most bytes of several files in one body.
	maxUpload = 24 << 20
	// maxStdin is the most bytes of one write to a standard input.
	maxStdin = 512 << 10
)

// routes are all there are. The document is made of them, so that it has each.
var routes = []route{
	{
		method: http.MethodPost, path: "/sandbox/create", id: "create", about: "Create a sandbox. It starts in the background.",
		scopes: tenant.Create, body: maxBody, media: mediaJSON, keyed: true, do: (*call).create,
		request: createSchema, answers: map[int]any{http.StatusCreated: created{}}, errors: []int{http.StatusConflict, http.StatusTooManyRequests},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/status", id: "status", about: "Show a sandbox as the log has it now.",
		scopes: tenant.Inspect, do: (*call).describe, answers: map[int]any{http.StatusOK: sandboxStatus{}}, errors: []int{http.StatusNotFound},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}", id: "status_alias", about: "The same as /sandbox/{id}/status.",
		scopes: tenant.Inspect, do: (*call).describe, answers: map[int]any{http.StatusOK: sandboxStatus{}}, errors: []int{http.StatusNotFound},
	},
	{
		method: http.MethodPost, path: "/sandbox/{id}/execute", id: "execute",
		about:  "Run a command and answer its end. A lost connection does not end it: repeat the request with its key, or read the execution.",
		scopes: tenant.Execute, body: maxBody, media: mediaJSON, keyed: true, long: true, do: (*call).execute,
		request: executeSchema, answers: map[int]any{http.StatusOK: execution{}, http.StatusAccepted: accepted{}}, stream: event{},
		errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/executions", id: "execution_by_key", about: "Show an execution by the idempotency key it came with.",
		scopes: tenant.Execute | tenant.Inspect, query: []string{"idempotency_key"}, long: true, do: (*call).receiptByKey,
		answers: map[int]any{http.StatusOK: execution{}}, errors: []int{http.StatusNotFound},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/executions/{execution_id}", id: "execution",
		about:  "Show an execution: what execute answers, as far as it is known now.",
		scopes: tenant.Execute | tenant.Inspect, long: true, do: (*call).receipt,
		answers: map[int]any{http.StatusOK: execution{}}, errors: []int{http.StatusNotFound},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/executions/{execution_id}/output", id: "output",
		about:  "All that is kept of one stream of an execution, as bytes.",
		scopes: tenant.Execute | tenant.Inspect, query: []string{"stream"}, long: true, do: (*call).output,
		answers: map[int]any{http.StatusOK: nil}, errors: []int{http.StatusNotFound, http.StatusGone},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/executions/{execution_id}/events", id: "events",
		about:  "Follow an execution by server-sent events, running or ended, from its beginning or behind Last-Event-ID.",
		scopes: tenant.Execute | tenant.Inspect, long: true, do: (*call).events, stream: event{}, answers: map[int]any{http.StatusOK: streamOnly{}},
		errors: []int{http.StatusNotFound, http.StatusGone},
	},
	{
		method: http.MethodPost, path: "/sandbox/{id}/executions/{execution_id}/stdin", id: "stdin",
		about:  "Write to the standard input of an execution that was started with keep_stdin, and close it.",
		scopes: tenant.Execute, body: maxStdin, media: mediaBytes, query: []string{"offset", "close"}, do: (*call).stdin,
		answers: map[int]any{http.StatusOK: stdinTaken{}}, errors: []int{http.StatusNotFound, http.StatusConflict},
	},
	{
		method: http.MethodPost, path: "/sandbox/{id}/executions/{execution_id}/cancel", id: "cancel",
		about:  "End an execution and every process that it started. One that has ended is left as it is.",
		scopes: tenant.Execute, keyed: true, do: (*call).cancel, answers: map[int]any{http.StatusOK: execution{}},
		errors: []int{http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge},
	},
	{
		method: http.MethodPost, path: "/sandbox/{id}/stop", id: "stop", about: "End a sandbox. Waits up to 20 s until it is gone.",
		scopes: tenant.Stop, keyed: true, do: (*call).stop,
		answers: map[int]any{http.StatusOK: stopped{}}, errors: []int{http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	},
	{
		method: http.MethodPost, path: "/sandbox/{id}/extend", id: "extend", about: "Let a sandbox live for some time from now on, at least. Never makes its time shorter.",
		scopes: tenant.Create, body: 1 << 10, media: mediaJSON, keyed: true, do: (*call).extend,
		request: extendSchema, answers: map[int]any{http.StatusOK: extended{}}, errors: []int{http.StatusNotFound, http.StatusConflict},
	},
	{
		method: http.MethodDelete, path: "/sandbox/{id}", id: "stop_alias", about: "The same as /sandbox/{id}/stop.",
		scopes: tenant.Stop, keyed: true, do: (*call).stop,
		answers: map[int]any{http.StatusOK: stopped{}}, errors: []int{http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	},
	{
		method: http.MethodGet, path: "/sandbox", id: "list", about: "List the tenant's sandboxes, newest first.",
		scopes: tenant.Inspect, query: []string{"cursor", "limit"}, do: (*call).list, answers: map[int]any{http.StatusOK: sandboxes{}},
	},
	{
		method: http.MethodGet, path: "/sandbox/{$}", id: "list_slash", about: "The same as /sandbox.",
		scopes: tenant.Inspect, query: []string{"cursor", "limit"}, do: (*call).list, answers: map[int]any{http.StatusOK: sandboxes{}},
	},
	{
		method: http.MethodGet, path: "/sandboxes", id: "list_alias", about: "The same as /sandbox.",
		scopes: tenant.Inspect, query: []string{"cursor", "limit"}, do: (*call).list, answers: map[int]any{http.StatusOK: sandboxes{}},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/files", id: "read_file",
		about:  "Read a file of the workspace, or a range of it, as bytes. HEAD tells of it. Want-Repr-Digest: sha-256=1 gives its digest.",
		scopes: tenant.Files, query: []string{"path"}, long: true, do: (*call).readFile,
		answers: map[int]any{http.StatusOK: nil, http.StatusPartialContent: nil, http.StatusNotModified: empty{}},
		errors:  []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestedRangeNotSatisfiable},
	},
	{
		method: http.MethodPut, path: "/sandbox/{id}/files", id: "write_file",
		about:  "Make the body the content of a file, at once, whatever its size. Content-Digest or Repr-Digest (sha-256) is checked before.",
		scopes: tenant.Files, body: maxFile, media: mediaBytes, keyed: true, query: []string{"path", "mode", "modified"}, long: true, do: (*call).writeFile,
		answers: map[int]any{http.StatusOK: written{}}, errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusInsufficientStorage},
	},
	{
		method: http.MethodDelete, path: "/sandbox/{id}/files", id: "delete_file",
		about:  "Remove a file, a link (not what it points to), an empty directory, or with recursive any directory.",
		scopes: tenant.Files, keyed: true, query: []string{"path", "recursive"}, do: (*call).deleteFile,
		answers: map[int]any{http.StatusOK: deleted{}},
		errors:  []int{http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge},
	},
	{
		method: http.MethodPost, path: "/sandbox/{id}/files", id: "write_files", about: "Write several files. One that fails ends it; those before it are there.",
		scopes: tenant.Files, body: maxUpload, media: mediaJSON, keyed: true, do: (*call).writeFiles,
		request: uploadSchema, answers: map[int]any{http.StatusOK: writtenAll{}}, errors: []int{http.StatusNotFound, http.StatusConflict, http.StatusInsufficientStorage},
	},
	{
		method: http.MethodGet, path: "/sandbox/{id}/files/list", id: "list_files", about: "List a directory of the workspace, in pages of at most 1,000 entries.",
		scopes: tenant.Files, query: []string{"path", "cursor", "limit"}, do: (*call).listFiles,
		answers: map[int]any{http.StatusOK: fileList{}}, errors: []int{http.StatusNotFound, http.StatusConflict},
	},
	{
		method: http.MethodGet, path: "/quota", id: "quota", about: "What the tenant may use at once, and what of it is in use.",
		scopes: tenant.Inspect, do: (*call).quota, answers: map[int]any{http.StatusOK: quotas{}},
	},
	{
		method: http.MethodGet, path: "/openapi.json", id: "document", about: "This document.", open: true, do: (*call).document,
		answers: map[int]any{http.StatusOK: map[string]any{}},
	},
}
