package sandboxapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Signer makes the tokens of previews: bytes that nobody else can make, change or read.
type Signer interface {
	Seal(plain, associated []byte) ([]byte, error)
	Open(sealed, associated []byte) ([]byte, error)
}

const (
	// previews is where signed URLs lead.
	previews = Base + "/preview"
	// previewTime is how long one is good where nothing is asked for, previewMost the most that may be.
	previewTime, previewMost = time.Hour, 24 * time.Hour
	// maxPreviewPath bounds the path of a preview, in bytes.
	maxPreviewPath = 2048
)

// previewUse tells tokens of previews from all else that is sealed with the deployment's key.
var previewUse = []byte("sandtrail preview 1")

// ticket is what a signed URL is good for. It names a sandbox by its id: another one of the same name is none of its business.
type ticket struct {
	Tenant  string `json:"t"`
	Sandbox string `json:"s"`
	Port    uint16 `json:"p"`
	// Until is in seconds since 1970.
	Until int64 `json:"u"`
	// Actor is who had it signed.
	Actor string `json:"a"`
}

// sign makes the token of a ticket.
func (s *Server) sign(t ticket) (string, error) {
	plain, err := json.Marshal(t)
	if err != nil {
		return "", fault.From(err)
	}
	sealed, err := s.opt.Signer.Seal(plain, previewUse)
	if err != nil {
		return "", fault.From(err)
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}

// verified is the ticket of a token that is good now. Every other one is refused in the same words, but for one whose time is over.
func (s *Server) verified(token string, now time.Time) (ticket, error) {
	var t ticket
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err == nil {
		var plain []byte
		if plain, err = s.opt.Signer.Open(sealed, previewUse); err == nil {
			err = json.Unmarshal(plain, &t)
		}
	}
	switch {
	case err != nil || !subject.ValidTenant(t.Tenant) || !ids.Valid(t.Sandbox) || t.Port == 0:
		return ticket{}, fault.New(fault.Unauthorized, fault.ReasonKeyInvalid, "the URL of this preview is not a valid one")
	case now.Unix() >= t.Until:
		return ticket{}, previewOver()
	}
	return t, nil
}

func previewOver() error {
	return fault.New(fault.Unauthorized, fault.ReasonTokenExpired, "the time of this preview's URL is over; ask for a new one")
}

// preview makes a signed URL: who has it reaches one port of the sandbox until its time is over, without a credential.
func (c *call) preview() error {
	var b struct {
		Port int64  `json:"port"`
		TTL  *int64 `json:"ttl_seconds"`
		Path string `json:"path"`
	}
	if err := c.object(&b); err != nil {
		return err
	}
	bad := map[string]string{}
	if b.Port < 1 || b.Port > 65535 {
		bad["port"] = "must be a number from 1 to 65535"
	}
	ttl := int64(previewTime / time.Second)
	if b.TTL != nil {
		ttl = *b.TTL
	}
	if most := int64(previewMost / time.Second); ttl < 1 || ttl > most {
		bad["ttl_seconds"] = "must be 1 to " + strconv.FormatInt(most, 10)
	}
	at := "/" + strings.TrimPrefix(b.Path, "/")
	if u, err := url.Parse(at); err != nil || u.Host != "" || len(at) > maxPreviewPath {
		bad["path"] = "must be a path of at most " + strconv.Itoa(maxPreviewPath) + " bytes, with a query if need be"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	id, err := c.box()
	if err != nil {
		return err
	}
	box, err := c.use.Reachable(c.ctx, c.p, id)
	if err != nil {
		return err
	}
	until := time.Now().Add(time.Duration(ttl) * time.Second).UTC().Truncate(time.Second)
	token, err := c.sign(ticket{Tenant: box.Tenant, Sandbox: box.ID, Port: uint16(b.Port), Until: until.Unix(), Actor: c.p.Actor}) //nolint:gosec // see above
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, map[string]any{
		"url": c.origin() + previews + "/" + token + at, "sandbox_id": box.ID, "port": b.Port, "expires_at": until.Format(time.RFC3339),
	})
}

// origin is this server as the caller has reached it, or says that it has.
func (c *call) origin() string {
	scheme := "http"
	if c.r.TLS != nil || strings.EqualFold(c.r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + c.r.Host
}

// target is what a request for a port leads to.
type target struct {
	// prefix is the path that leads to the port, without a slash at its end; rest what of the path is the program's, as it was sent.
	prefix, rest string
	// port as it stands in the path, and token; one of them is empty.
	port, token string
}

var (
	proxied = route{path: toolbox + "/proxy/{port}/", id: "proxy", scopes: tenant.Execute, long: true, raw: true, do: (*call).proxy}
	signed  = route{path: previews + "/{token}/", id: "preview", open: true, long: true, do: (*call).previewed}
)

// ported finds requests for ports before the mux does, which would change their paths: what a program takes for a path is its own.
func ported(r *http.Request) (route, target, bool) {
	path := r.URL.EscapedPath()
	if rest, ok := strings.CutPrefix(path, previews+"/"); ok {
		token, rest := segment(rest)
		return signed, target{prefix: previews + "/" + token, rest: rest, token: token}, true
	}
	rest, ok := strings.CutPrefix(path, all+"/")
	name, rest := segment(rest)
	below, under := strings.CutPrefix(rest, "/toolbox/proxy/")
	plain, err := url.PathUnescape(name)
	if !ok || !under || err != nil {
		return route{}, target{}, false
	}
	port, rest := segment(below)
	r.SetPathValue("name", plain)
	return proxied, target{prefix: all + "/" + name + "/toolbox/proxy/" + port, rest: rest, port: port}, true
}

// segment cuts the first segment of a path from the rest, which begins with its slash.
func segment(path string) (first, rest string) {
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// proxy serves a port to who has a credential.
func (c *call) proxy() error {
	port, err := strconv.ParseUint(c.target.port, 10, 16)
	if err != nil || port == 0 || c.target.port[0] == '+' || c.target.port[0] == '0' {
		return field("port", "must be a number from 1 to 65535")
	}
	if err := c.ownOrigin("a port of a sandbox is not for a page of another site"); err != nil {
		return err
	}
	id, err := c.box()
	if err != nil {
		return err
	}
	return c.toPort(id, uint16(port))
}

// previewed serves a port to who has a signed URL of it. It ends with the URL's time, whatever is under way.
func (c *call) previewed() error {
	t, err := c.verified(c.target.token, time.Now())
	if err != nil {
		return err
	}
	c.p = principal.Principal{Tenant: t.Tenant, Actor: t.Actor, Scopes: tenant.Execute}
	ctx, cancel := context.WithDeadlineCause(principal.With(c.ctx, c.p), time.Unix(t.Until, 0), previewOver())
	c.ctx, c.release = ctx, cancel
	if err := c.Reachable(ctx); err != nil {
		return err
	}
	if c.preflight() {
		return nil
	}
	return c.toPort(t.Sandbox, t.Port)
}

// preflight answers what a browser asks before a page may use its own server: the page of a preview has no origin, so everything is another
// one to it. The URL says what it may do.
func (c *call) preflight() bool {
	h := c.r.Header
	if c.r.Method != http.MethodOptions || h.Get("Origin") == "" || h.Get("Access-Control-Request-Method") == "" {
		return false
	}
	to := c.w.Header()
	to.Set("Access-Control-Allow-Origin", "*")
	to.Set("Access-Control-Allow-Methods", h.Get("Access-Control-Request-Method"))
	to.Set("Access-Control-Allow-Headers", h.Get("Access-Control-Request-Headers"))
	to.Set("Access-Control-Max-Age", "600")
	c.Status = http.StatusNoContent
	c.w.WriteHeader(http.StatusNoContent)
	return true
}
