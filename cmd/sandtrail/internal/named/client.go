// Package named speaks to the HTTP API of named sandboxes.
package named

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Options say which server, and who calls.
type Options struct {
	// URL of the server, http:// or https://, without the path of the API.
	URL string
	// Key is the API key, empty for a server in development mode; Tenant is for such servers.
	Key, Tenant string
	// Plaintext lets a key go to another host without TLS.
	Plaintext bool
	Agent     string
}

// ErrPlaintextKey: the key would go to another host for everybody on the way to read.
var ErrPlaintextKey = errors.New("the API key would be sent to another host without TLS: use https://, or --plaintext")

// Client of one server.
type Client struct {
	options Options
	http    *http.Client
}

// New checks the options; it does not connect.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return nil, fmt.Errorf("%q is not the URL of a server, such as http://localhost:8080", o.URL)
	}
	if ip := net.ParseIP(u.Hostname()); o.Key != "" && u.Scheme == "http" && !o.Plaintext && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, ErrPlaintextKey
	}
	o.URL = strings.TrimRight(o.URL, "/")
	return &Client{options: o, http: &http.Client{
		// A redirect would take the key elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Request is one call. Path stands below the server's URL.
type Request struct {
	Method, Path string
	Query        url.Values
	// Body is JSON unless Media says otherwise; nil: none.
	Body  io.Reader
	Media string
	// Accept is what the answer should be, empty for any.
	Accept string
	// Header has further fields.
	Header http.Header
}

// Do makes a call and gives an answer below 400, whose body the caller closes; anything else is a *fault.Error.
func (c *Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	to := c.options.URL + r.Path
	if len(r.Query) > 0 {
		to += "?" + r.Query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, to, r.Body)
	if err != nil {
		return nil, err
	}
	if r.Body != nil {
		media := r.Media
		if media == "" {
			media = "application/json"
		}
		req.Header.Set("Content-Type", media)
	}
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	maps.Copy(req.Header, r.Header)
	c.identify(req.Header)
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, c.unreached(err)
	}
	if res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}
	defer res.Body.Close()
	return nil, refused(res)
}

// identify says who calls.
func (c *Client) identify(h http.Header) {
	if c.options.Key != "" {
		h.Set("Authorization", "Bearer "+c.options.Key)
	}
	if c.options.Tenant != "" {
		h.Set("X-Sandtrail-Tenant", c.options.Tenant)
	}
	h.Set("User-Agent", c.options.Agent)
}

func (c *Client) unreached(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fault.Newf(fault.Unavailable, fault.ReasonWorkerUnavailable,
		"the server at %s cannot be reached (--api-url, SANDTRAIL_API_URL; `sandtrail up` runs one): %v", c.options.URL, err)
}

// maxProblem bounds what is read of a refusal, maxAnswer of an answer that is one document.
const maxProblem, maxAnswer = 64 << 10, 64 << 20

// refused is the fault that an answer tells of.
func refused(res *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem)) // what came of it will do
	var p struct {
		Message string             `json:"message"`
		Error   fault.ProblemError `json:"error"`
	}
	if json.Unmarshal(data, &p) != nil || p.Error.Code == "" {
		said := strings.TrimSpace(p.Message)
		if said == "" {
			said = strings.TrimSpace(strings.ToValidUTF8(string(data), "?"))
		}
		code := fault.Internal
		switch res.StatusCode {
		case http.StatusNotFound:
			code = fault.NotFound
		case http.StatusUnauthorized:
			code = fault.Unauthorized
		case http.StatusForbidden:
			code = fault.PermissionDenied
		}
		return fault.Newf(code, fault.ReasonInternal, "the server answered %s: %.300s", res.Status, said)
	}
	return problemFault(p.Error)
}

// problemFault is the fault that a problem tells of.
func problemFault(p fault.ProblemError) error {
	f := fault.New(p.Code, p.Reason, p.Message).WithRetry(time.Duration(p.RetryAfterSeconds) * time.Second)
	if len(p.Fields) > 0 {
		fields := map[string]string{}
		for _, one := range p.Fields {
			fields[one.Field] = one.Message
		}
		f = f.WithFields(fields)
	}
	return f
}

// Raw makes a call and gives the whole answer, at most 64 MiB.
func (c *Client) Raw(ctx context.Context, r Request) ([]byte, error) {
	res, err := c.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return data, err
}

// JSON makes a call with v as its body, unless it is nil, and reads the answer into out.
func (c *Client) JSON(ctx context.Context, method, path string, query url.Values, v, out any) error {
	r := Request{Method: method, Path: path, Query: query}
	if v != nil {
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		r.Body = bytes.NewReader(body)
	}
	data, err := c.Raw(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("the server's answer to %s %s is no JSON: %w", method, path, err)
	}
	return nil
}

// Box is the path of a sandbox, and of what is below it.
func Box(name string, below ...string) string {
	p := "/api/v1/sandboxes/" + url.PathEscape(name)
	for _, b := range below {
		p += "/" + b
	}
	return p
}
