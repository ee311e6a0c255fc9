package sandboxapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

// MCP answers requests of the Model Context Protocol with the tools of one sandbox, of a caller whose name is owner. It returns an error where
// it has answered nothing.
type MCP interface {
	ServeOne(w http.ResponseWriter, r *http.Request, owner, sandbox string) error
}

// mcpBody is the most bytes of a message: a file's content of 1 MiB in which JSON escapes every character, and the rest.
const mcpBody = 8 << 20

// mcp is the sandbox's own endpoint of MCP. A tool's call is one of the API, with the caller's credential; so scopes are looked at there.
func (c *call) mcp() error {
	if err := c.ownOrigin("the tools of a sandbox are not for a page of another site"); err != nil {
		return err
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	if _, err := c.use.Located(c.ctx, c.p, box); err != nil {
		return err
	}
	var body []byte
	switch c.r.Method {
	case http.MethodGet, http.MethodDelete:
	case http.MethodPost:
		var release func()
		body, release, err = edge.Body{Most: mcpBody, Time: c.opt.BodyTime, Memory: c.memory}.Read(c.w, c.r)
		defer release()
		if err != nil {
			return err
		}
	default:
		c.w.Header().Set("Allow", "DELETE, GET, POST")
		return fault.New(fault.FailedPrecondition, fault.ReasonMethod, "this path takes DELETE, GET, POST")
	}
	r := c.r.Clone(c.r.Context())
	r.Header.Del("Authorization")
	if shown := credential(c.r.Header); shown != "" {
		r.Header.Set("Authorization", shown)
	}
	return c.Messages(c.ctx, r, body, c.opt.Heartbeat, func(w http.ResponseWriter, r *http.Request) error {
		return c.opt.MCP.ServeOne(w, r, c.p.Tenant+"\x00"+c.p.Actor, box)
	})
}

// ownOrigin refuses pages of other sites: a browser sends a person's credentials along.
func (c *call) ownOrigin(message string) error {
	all := c.r.Header["Origin"]
	if len(all) == 0 {
		return nil
	}
	u, err := url.Parse(all[0])
	if len(all) > 1 || err != nil || !strings.EqualFold(u.Host, c.r.Host) {
		return fault.New(fault.PermissionDenied, fault.ReasonOrigin, message)
	}
	return nil
}
