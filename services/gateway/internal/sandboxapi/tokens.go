package sandboxapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Roles are scopes in the words of the published API: an administrator may do everything, a user everything but what only administrators may.
const (
	roleAdmin = "admin"
	roleUser  = "user"
	// roleOther is what is shown of a key with other scopes than these two.
	roleOther = "custom"
)

// scopesOfUser are all but that of administrators.
const scopesOfUser = tenant.All &^ tenant.Admin

// token is what is shown of a key.
type token struct {
	// Token is the key itself, only where it was just made.
	Token     string    `json:"token,omitempty"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Prefix    string    `json:"prefix"`
	Role      string    `json:"role"`
	Scopes    []string  `json:"scopes"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt is there for a key with an end.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

func tokenOf(k tenant.Key) token {
	t := token{ID: k.ID, Name: k.Name, Prefix: k.Prefix, Role: roleOther, Scopes: k.Scopes.Names(), CreatedAt: k.CreatedAt}
	switch {
	case k.Scopes&tenant.Admin != 0:
		t.Role = roleAdmin
	case k.Scopes == scopesOfUser:
		t.Role = roleUser
	}
	if !k.ExpiresAt.IsZero() {
		t.ExpiresAt = &k.ExpiresAt
	}
	return t
}

// maxIssue is the most bytes of a request for a key.
const maxIssue = 4 << 10

// issue makes a key of the caller's tenant and shows it, this once.
func (c *call) issue() error {
	fields, err := c.fields(maxIssue)
	if err != nil {
		return err
	}
	name, allowed, err := order(fields)
	if err != nil {
		return err
	}
	secret, k, err := c.use.Issue(c.ctx, c.p, name, allowed)
	if err != nil {
		return err
	}
	out := tokenOf(k)
	out.Token = secret.Text
	return c.answer(http.StatusCreated, out)
}

// order reads what key is asked for: a name, and a role (user unless it says so) or scopes.
func order(fields map[string]json.RawMessage) (name string, allowed tenant.Scopes, err error) {
	known := []string{"name", "role", "scopes"}
	bad := map[string]string{}
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, f) {
			bad[f] = "is not a field of this request; it has " + strings.Join(known, ", ")
		}
	}
	role, names, listed := roleUser, []string(nil), fields["scopes"] != nil
	for f, into := range map[string]any{"name": &name, "role": &role, "scopes": &names} {
		if v, given := fields[f]; given && json.Unmarshal(v, into) != nil {
			bad[f] = map[bool]string{true: "must be an array of strings", false: "must be a string"}[f == "scopes"]
		}
	}
	if len(name) > tenant.MaxName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		bad["name"] = "must be at most 128 bytes without control characters"
	}
	switch {
	case bad["role"] != "" || bad["scopes"] != "":
	case listed && fields["role"] != nil:
		bad["scopes"] = "must not be given beside role"
	case listed:
		if allowed, err = tenant.ParseScopes(names); err != nil {
			bad["scopes"] = err.Error()
		}
	case role == roleAdmin:
		allowed = tenant.All
	case role == roleUser:
		allowed = scopesOfUser
	default:
		bad["role"] = "must be admin or user"
	}
	return name, allowed, invalid(bad)
}

// tokens lists the keys of the caller's tenant that work; none is shown itself.
func (c *call) tokens() error {
	keys, err := c.use.Issued(c.ctx, c.p)
	if err != nil {
		return err
	}
	out := struct {
		Tokens []token `json:"tokens"`
	}{[]token{}}
	for _, k := range keys {
		out.Tokens = append(out.Tokens, tokenOf(k))
	}
	return c.answer(http.StatusOK, out)
}

// revoke ends a key, by its prefix or its id.
func (c *call) revoke() error {
	k, err := c.use.Revoke(c.ctx, c.p, c.r.PathValue("prefix"))
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, struct {
		Revoked bool `json:"revoked"`
		token
	}{true, tokenOf(k)})
}
