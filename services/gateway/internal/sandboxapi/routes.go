package sandboxapi

import (
	"net/http"

	"github.com/sandtrail/sandtrail/libs/tenant"
)

const (
	all     = Base + "/sandboxes"
	one     = all + "/{name}"
	toolbox = one + "/toolbox"
	kernel  = toolbox + "/code-interpreter"

	executions = one + "/executions"
)

// routes are those that are served.
var routes = []route{
	{method: http.MethodGet, path: "/health", id: "health", open: true, do: (*call).health},
	{method: http.MethodPost, path: all, id: "create", scopes: tenant.Create, long: true, do: (*call).create},
	{method: http.MethodGet, path: all, id: "list", scopes: tenant.Inspect, do: (*call).list},
	{method: http.MethodGet, path: all + "/{$}", id: "list_slash", scopes: tenant.Inspect, do: (*call).list},
	{method: http.MethodGet, path: one, id: "get", scopes: tenant.Inspect, do: (*call).get},
	{method: http.MethodDelete, path: one, id: "delete", scopes: tenant.Stop, do: (*call).remove},
	{method: http.MethodPatch, path: one, id: "update_sandbox", scopes: tenant.Create, do: (*call).change},
	{method: http.MethodPost, path: one + "/stop", id: "stop", scopes: tenant.Stop, long: true, do: (*call).stop},
	{method: http.MethodPost, path: one + "/start", id: "start", scopes: tenant.Stop, long: true, do: (*call).start},
	{method: http.MethodPost, path: one + "/snapshot", id: "snapshot", scopes: tenant.Create, long: true, do: (*call).snapshot},
	{method: http.MethodGet, path: one + "/logs", id: "logs", scopes: tenant.Inspect, do: (*call).logs},
	{method: http.MethodPost, path: all + "/execute", id: "execute", scopes: tenant.Execute, long: true, do: (*call).execute},
	{method: http.MethodGet, path: all + "/stream", id: "stream", scopes: tenant.Execute, long: true, do: (*call).stream},
	{method: http.MethodPost, path: all + "/stream", id: "stream_post", scopes: tenant.Execute, long: true, do: (*call).stream},
	{method: http.MethodGet, path: one + "/pty", id: "pty", scopes: tenant.Execute, long: true, do: (*call).pty},
	{path: one + "/mcp", id: "mcp", scopes: tenant.All, long: true, do: (*call).mcp},
	{path: one + "/mcp/{$}", id: "mcp_slash", scopes: tenant.All, long: true, do: (*call).mcp},
	{method: http.MethodPost, path: kernel + "/execute", id: "interpreter", scopes: tenant.Execute, long: true, do: (*call).runCell},
	{method: http.MethodPost, path: kernel + "/contexts", id: "create_context", scopes: tenant.Execute, do: (*call).createContext},
	{method: http.MethodGet, path: kernel + "/contexts", id: "contexts", scopes: tenant.Execute, do: (*call).contexts},
	{method: http.MethodPost, path: kernel + "/contexts/{id}/restart", id: "restart_context", scopes: tenant.Execute, do: (*call).restartContext},
	{method: http.MethodDelete, path: kernel + "/contexts/{id}", id: "delete_context", scopes: tenant.Execute, do: (*call).removeContext},
	{method: http.MethodPost, path: one + "/session", id: "session_create", scopes: tenant.Execute, long: true, do: (*call).createSession},
	{method: http.MethodGet, path: one + "/session", id: "session_list", scopes: tenant.Execute, do: (*call).sessions},
	{method: http.MethodGet, path: one + "/session/{id}", id: "session_get", scopes: tenant.Execute, do: (*call).showSession},
	{method: http.MethodDelete, path: one + "/session/{id}", id: "session_delete", scopes: tenant.Execute, do: (*call).deleteSession},
	{method: http.MethodPost, path: one + "/session/{id}/exec", id: "session_exec", scopes: tenant.Execute, long: true, do: (*call).execSession},
	{method: http.MethodGet, path: executions, id: "executions", scopes: tenant.Execute | tenant.Inspect, do: (*call).executions},
	{method: http.MethodGet, path: executions + "/{id}", id: "execution", scopes: tenant.Execute | tenant.Inspect, do: (*call).execution},
	{method: http.MethodGet, path: executions + "/{id}/stream", id: "execution_stream", scopes: tenant.Execute | tenant.Inspect, long: true, do: (*call).attach},
	{method: http.MethodPost, path: executions + "/{id}/stdin", id: "execution_stdin", scopes: tenant.Execute, do: (*call).stdin},
	{method: http.MethodPost, path: executions + "/{id}/signal", id: "execution_signal", scopes: tenant.Execute, do: (*call).signal},
	{method: http.MethodPost, path: executions + "/{id}/cancel", id: "execution_cancel", scopes: tenant.Execute, do: (*call).cancel},
	{method: http.MethodGet, path: toolbox + "/info", id: "info", scopes: tenant.Execute, do: (*call).about},
	{method: http.MethodGet, path: toolbox + "/metrics", id: "metrics", scopes: tenant.Execute, do: (*call).load},
	{method: http.MethodGet, path: toolbox + "/files", id: "files", scopes: tenant.Files, do: (*call).listFiles},
	{method: http.MethodGet, path: toolbox + "/files/info", id: "file_info", scopes: tenant.Files, do: (*call).fileInfo},
	{method: http.MethodGet, path: toolbox + "/files/download", id: "download", scopes: tenant.Files, long: true, do: (*call).download},
	{method: http.MethodPost, path: toolbox + "/files/upload", id: "upload", scopes: tenant.Files, long: true, do: (*call).upload},
	{method: http.MethodPost, path: toolbox + "/files/bulk-upload", id: "bulk_upload", scopes: tenant.Files, long: true, do: (*call).uploadAll},
	{method: http.MethodPost, path: toolbox + "/files/upload-tar", id: "upload_tar", scopes: tenant.Files, long: true, do: (*call).uploadTree},
	{method: http.MethodPost, path: toolbox + "/files/folder", id: "folder", scopes: tenant.Files, do: (*call).makeFolder},
	{method: http.MethodPost, path: toolbox + "/files/move", id: "move", scopes: tenant.Files, do: (*call).moveFile},
	{method: http.MethodDelete, path: toolbox + "/files/delete", id: "delete_file", scopes: tenant.Files, do: (*call).deleteFile},
	{method: http.MethodGet, path: toolbox + "/files/search", id: "search", scopes: tenant.Files, do: (*call).searchFiles},
	{method: http.MethodGet, path: toolbox + "/files/find", id: "find", scopes: tenant.Files, do: (*call).findInFiles},
	{method: http.MethodPost, path: toolbox + "/files/replace", id: "replace", scopes: tenant.Files, do: (*call).replaceInFiles},
	{method: http.MethodPost, path: toolbox + "/watch/create", id: "watch", scopes: tenant.Files, do: (*call).watch},
	{method: http.MethodGet, path: toolbox + "/watch/events", id: "watch_events", scopes: tenant.Files, do: (*call).watched},
	{method: http.MethodPost, path: toolbox + "/watch/remove", id: "unwatch", scopes: tenant.Files, do: (*call).unwatch},
	{method: http.MethodPost, path: one + "/preview", id: "preview_sign", scopes: tenant.Execute, do: (*call).preview},
	{method: http.MethodGet, path: Base + "/jobs/{id}", id: "job", scopes: tenant.Inspect, do: (*call).showJob},
	{method: http.MethodGet, path: Base + "/poders", id: "poders", scopes: tenant.Inspect, do: (*call).poders},
	{method: http.MethodGet, path: Base + "/poders/{id}", id: "poder", scopes: tenant.Inspect, do: (*call).poder},
	{method: http.MethodPost, path: Base + "/poders/{id}/sandboxes", id: "create_on", scopes: tenant.Create, long: true, do: (*call).createOn},
	{method: http.MethodDelete, path: Base + "/poders/{id}", id: "delete_poder", scopes: tenant.Admin, do: (*call).removePoder},
	{method: http.MethodPost, path: Base + "/tokens", id: "issue_token", scopes: tenant.Admin, do: (*call).issue},
	{method: http.MethodGet, path: Base + "/tokens", id: "list_tokens", scopes: tenant.Admin, do: (*call).tokens},
	{method: http.MethodDelete, path: Base + "/tokens/{prefix}", id: "revoke_token", scopes: tenant.Admin, do: (*call).revoke},
}
