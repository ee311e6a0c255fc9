package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/libs/egress"
)

// MaxURL bounds the URL of an endpoint, in bytes.
const MaxURL = 2048

// Guard says where messages may go.
type Guard struct {
	// Private allows addresses of private networks, of this host and of other special purposes, and plain HTTP.
	Private bool
}

// ErrPrivate: the address is none of the public internet.
var ErrPrivate = errors.New("the address is not public")

// Address refuses addresses that are not public: ErrPrivate.
func (g Guard) Address(a netip.Addr) error {
	if g.Private || egress.Public(a) {
		return nil
	}
	return ErrPrivate
}

// URL says what is wrong with the URL of an endpoint, in words; "" where nothing is. What its name leads to is only known when it is called.
func (g Guard) URL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > MaxURL || u.Host == "" || u.Hostname() == "":
		return fmt.Sprintf("must be an absolute URL of at most %d bytes", MaxURL)
	case u.Scheme != "https" && (u.Scheme != "http" || !g.Private):
		return "must begin with https://"
	case u.User != nil:
		return "must not hold credentials: the log would keep them"
	case u.Fragment != "":
		return "must not have a fragment"
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && g.Address(a) != nil {
		return "must be on the public internet"
	}
	return ""
}

// control is asked before each connection, with the address that a name was resolved to: it does not matter what the name led to when
// somebody looked before.
func (g Guard) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return ErrPrivate
	}
	return g.Address(to.Addr())
}

// Client is for sending messages: it follows no redirects and uses no proxy, and gives an endpoint so long for its answer.
func (g Guard) Client(timeout time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: min(timeout, 10*time.Second), Control: g.control}
	return &http.Client{
		Timeout: timeout,
		// What an endpoint answers with is its last word: a redirect could lead anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: min(timeout, 10*time.Second),
			MaxIdleConns: 256, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
		},
	}
}
