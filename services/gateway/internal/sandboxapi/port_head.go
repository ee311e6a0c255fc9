package sandboxapi

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
)

// quiet: what net/http says of a program's answers is the program's own, and belongs in nobody's log.
var quiet = log.New(io.Discard, "", 0)

// visit is one request to a port.
type visit struct {
	*call
	port uint16
	to   *url.URL
	// failed is why there was no answer.
	failed error
}

const (
	// ownCookie is in front of the names of a program's cookies at the caller. No other cookie is the program's: a browser sends those of
	// whatever else lives on this host along.
	ownCookie = "sandbox-"
	// confined makes a page of a program one without an origin: on the host of this API it would be the API's own otherwise, with what a
	// browser keeps for that.
	confined = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"
)

// withheld are headers by which a caller, or who stands before this server, shows who the caller is.
var (
	withheld      = []string{"Authorization", "Proxy-Authorization", headerToken, headerTenant, "Cookie", "X-Real-Ip"}
	withheldBegin = []string{"X-Forwarded-", "X-Auth-Request-", "X-Amzn-Oidc-", "X-Goog-", "Cf-Access-", "X-Sandtrail-"}
	// unsaid are what an answer may not say for the host of this API, beside what is rewritten.
	unsaid = []string{
		"Accept-Ch", "Alt-Svc", "Clear-Site-Data", "Critical-Ch", "Nel", "Public-Key-Pins", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed",
		"Set-Login", "Strict-Transport-Security", "Www-Authenticate", "Proxy-Authenticate", "X-Accel-Redirect", "X-Accel-Buffering", "X-Sendfile",
	}
)

// local is the program's own address, as it is told to it: programs that are made for one machine answer to no other.
func (v *visit) local() string { return fmt.Sprintf("localhost:%d", v.port) }

// rewrite makes the request that the program gets.
func (v *visit) rewrite(r *httputil.ProxyRequest) {
	out, h := r.Out, r.Out.Header
	out.URL, out.Host = v.to, v.local()
	for name := range h {
		if slices.Contains(withheld, name) || slices.ContainsFunc(withheldBegin, func(p string) bool { return strings.HasPrefix(name, p) }) {
			h.Del(name)
		}
	}
	for _, c := range r.In.Cookies() {
		if name, own := strings.CutPrefix(c.Name, ownCookie); own && name != "" {
			c.Name = name
			out.AddCookie(c)
		}
	}
	if !strings.EqualFold(h.Get("Upgrade"), "websocket") {
		h.Del("Upgrade")
		h.Del("Connection")
	}
	r.SetXForwarded()
	if v.target.token == "" {
		h.Set("X-Forwarded-Prefix", v.target.prefix)
	}
	if o := h.Get("Origin"); o == "null" || v.ours(o) {
		h.Set("Origin", "http://"+v.local())
	}
	if from := h.Get("Referer"); v.ours(from) { // the token of a preview is in it
		h.Del("Referer")
		if u, err := url.Parse(from); err == nil {
			if rest, ok := strings.CutPrefix(u.EscapedPath(), v.target.prefix+"/"); ok {
				h.Set("Referer", "http://"+v.local()+"/"+rest)
			}
		}
	}
}

// ours reports whether a URL leads to this server.
func (v *visit) ours(s string) bool {
	u, err := url.Parse(s)
	return s != "" && err == nil && strings.EqualFold(u.Host, v.r.Host)
}

// answered makes what the caller gets of an answer.
func (v *visit) answered(res *http.Response) {
	h := res.Header
	cookies := res.Cookies()
	for name := range h {
		if slices.Contains(unsaid, name) || strings.HasPrefix(name, "Access-Control-") {
			h.Del(name)
		}
	}
	h.Del("Set-Cookie")
	for _, c := range cookies {
		c.Name, c.Domain = ownCookie+c.Name, ""
		if !strings.HasPrefix(c.Path, "/") {
			c.Path = "/"
		}
		c.Path = v.target.prefix + c.Path
		if text := c.String(); text != "" {
			h.Add("Set-Cookie", text)
		}
	}
	if to := h.Get("Location"); to != "" {
		h.Set("Location", v.outside(to))
	}
	h.Add("Content-Security-Policy", confined)
	if v.target.token != "" {
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", "*")
		if h.Get("Referrer-Policy") == "" {
			h.Set("Referrer-Policy", "no-referrer")
		}
	}
	// What this API says of every answer stands once: what may be kept is the program's to say.
	if h.Get("Cache-Control") != "" {
		v.w.Header().Del("Cache-Control")
	}
	for name := range v.w.Header() {
		h.Del(name)
	}
}

// outside is a program's own address as its caller has it; another one's is left as it is.
func (v *visit) outside(to string) string {
	u, err := url.Parse(to)
	if err != nil {
		return to
	}
	own := []string{v.local(), fmt.Sprintf("127.0.0.1:%d", v.port), fmt.Sprintf("0.0.0.0:%d", v.port), fmt.Sprintf("[::1]:%d", v.port), v.r.Host}
	switch {
	case u.Host == "" && !strings.HasPrefix(u.Path, "/"), u.Host != "" && !slices.Contains(own, u.Host):
		return to
	case strings.HasPrefix(u.EscapedPath(), v.target.prefix+"/"): // it knows its prefix
		u.Scheme, u.Host = "", ""
		return u.String()
	}
	rest := u.EscapedPath()
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	result := v.target.prefix + rest + query(u)
	if u.Fragment != "" {
		result += "#" + u.EscapedFragment()
	}
	return result
}
