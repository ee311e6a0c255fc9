package httpapi

import (
	"net/http"
	"slices"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// MCP answers requests of the Model Context Protocol, of a caller whose name is owner. It returns an error where it has answered nothing.
type MCP interface {
	Serve(w http.ResponseWriter, r *http.Request, owner string) error
}

// mcpBody is the most bytes of a message: a file's content of 1 MiB in which JSON escapes every character, and the rest.
const mcpBody = 8 << 20

// mcpRoute stands beside the API and not in its document: the protocol describes itself.
var mcpRoute = route{path: "/mcp", outside: true, id: "mcp", scopes: tenant.All, long: true, do: (*call).mcp}

// mcpMethods are those of Streamable HTTP.
var mcpMethods = []string{http.MethodDelete, http.MethodGet, http.MethodPost}

func (c *call) mcp() error {
	if origin := c.r.Header.Get("Origin"); origin != "" && !c.allowed(origin) {
		return fault.New(fault.PermissionDenied, fault.ReasonOrigin, "browsers may not call this API from there; see cors-origins")
	}
	if !slices.Contains(mcpMethods, c.r.Method) {
		c.w.Header().Set("Allow", "DELETE, GET, POST")
		return fault.New(fault.FailedPrecondition, fault.ReasonMethod, "this path takes DELETE, GET, POST")
	}
	var body []byte
	if c.r.Method == http.MethodPost {
		var release func()
		var err error
		body, release, err = c.read(mcpBody, mediaJSON)
		defer release()
		if err != nil {
			return err
		}
	}
	return c.Messages(c.ctx, c.r, body, c.opt.Heartbeat, func(w http.ResponseWriter, r *http.Request) error {
		return c.opt.MCP.Serve(w, r, c.p.Tenant+"\x00"+c.p.Actor)
	})
}
