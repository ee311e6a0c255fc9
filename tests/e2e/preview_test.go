package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// guestPort is a sandbox's own: it is no port of this machine.
const guestPort = "8765"

// pages is a real sandbox in which testdata/ports.py listens.
type pages struct {
	t *testing.T
	s *stack.Stack
	// base leads to the port with a credential, where one is needed.
	base string
}

func newPages(t *testing.T) *pages {
	t.Helper()
	s := stack.Up(t)
	p := &pages{t: t, s: s, base: "http://" + s.HTTP + "/api/v1/sandboxes/box/toolbox/proxy/" + guestPort}
	p.does("create", "box")
	p.does("fs", "upload", "box", "testdata/ports.py", "/workspace/ports.py")
	p.serves()
	return p
}

func (p *pages) serves() {
	p.t.Helper()
	p.does("execute", "box", "nohup python3 /workspace/ports.py "+guestPort+" >/dev/null 2>&1 &")
	require.Eventually(p.t, func() bool {
		status, _, _ := p.get("GET", p.base+"/", nil)
		return status == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
}

func (p *pages) cli(args ...string) (string, error) {
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(stack.Bin(p.t), "sandtrail"), args...)
	cmd.Env = append(os.Environ(), "SANDTRAIL_API_URL=http://"+p.s.HTTP, "SANDTRAIL_CONFIG="+filepath.Join(p.t.TempDir(), "none"))
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (p *pages) does(args ...string) string {
	p.t.Helper()
	out, err := p.cli(args...)
	require.NoError(p.t, err, "%v: %s", args, out)
	return out
}

// get asks and follows no redirect.
func (p *pages) get(method, url string, body []byte, headers ...string) (int, http.Header, []byte) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, url, bytes.NewReader(body))
	require.NoError(p.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(p.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(p.t, err)
	return res.StatusCode, res.Header, data
}

// asked is what the program says that it was asked.
func (p *pages) asked(url string, headers ...string) (path string, got map[string]string) {
	p.t.Helper()
	status, _, body := p.get("GET", url, nil, headers...)
	require.Equal(p.t, http.StatusOK, status, "%s", body)
	var v struct {
		Path    string
		Headers map[string]string
	}
	require.NoError(p.t, json.Unmarshal(body, &v))
	return v.Path, v.Headers
}

// A port of a real sandbox, which has no network, is reached over HTTP and WebSocket, by who may and by a URL that ends; the sandbox is shown
// nobody's credential, and nothing of it is recorded.
func TestPortsOfASandboxAreReached(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs a sandbox")
	}
	p := newPages(t)
	signed := p.does("preview", "box", guestPort)
	require.Regexp(t, `^http://`+p.s.HTTP+`/api/v1/preview/[A-Za-z0-9_-]{80,}/$`, signed)
	signed = strings.TrimSuffix(signed, "/")
	token := signed[strings.LastIndexByte(signed, '/')+1:]

	for name, base := range map[string]string{"with a credential": p.base, "by a signed URL": signed} {
		t.Run(name, func(t *testing.T) {
			p := &pages{t: t, s: p.s, base: base}
			p.takesPathsAsTheyAre()
			p.showsNoCredential(token)
			p.confines()
			p.carries()
			p.streams()
			p.talks()
		})
	}
	p.refuses(signed, token)
	log := p.s.Log("up")
	require.NotContains(t, log, token)
	require.NotContains(t, p.does("logs", "box"), "0123456789abcdef")
}

func (p *pages) takesPathsAsTheyAre() {
	for _, path := range []string{"/", "/a//b/../c", "/x%2Fy?q=a;b&c=%20", "/%E2%82%AC"} {
		got, _ := p.asked(p.base + path)
		require.Equal(p.t, path, got)
	}
	status, h, _ := p.get("GET", p.base+"?q=1", nil)
	require.Equal(p.t, http.StatusPermanentRedirect, status)
	require.Equal(p.t, p.base[strings.LastIndexByte(p.base, '/')+1:]+"/?q=1", h.Get("Location"))
}

func (p *pages) showsNoCredential(token string) {
	_, got := p.asked(p.base+"/asked", "Cookie: theirs=1; sandbox-session=2", "X-Forwarded-Access-Token: secret", "Proxy-Authorization: Basic secret",
		"X-Sandtrail-Tenant: default", "Referer: "+p.base+"/page", "X-Own: kept")
	require.Equal(p.t, "session=2", got["cookie"])
	require.Equal(p.t, "localhost:"+guestPort, got["host"])
	require.Equal(p.t, []string{p.s.HTTP, "http", "127.0.0.1"}, []string{got["x-forwarded-host"], got["x-forwarded-proto"], got["x-forwarded-for"]})
	require.Equal(p.t, "http://localhost:"+guestPort+"/page", got["referer"])
	require.Equal(p.t, "kept", got["x-own"])
	for name, value := range got {
		require.NotContains(p.t, value, "secret", name)
		require.NotContains(p.t, value, token, name)
		require.NotContains(p.t, name, "sandtrail")
	}
}

// What a program answers does nothing to the host of this API.
func (p *pages) confines() {
	status, h, _ := p.get("GET", p.base+"/set", nil)
	require.Equal(p.t, http.StatusFound, status)
	prefix := strings.TrimPrefix(p.base, "http://"+p.s.HTTP)
	require.Equal(p.t, prefix+"/asked?next=1", h.Get("Location"))
	require.Equal(p.t, "sandbox-session=1; Path="+prefix+"/; HttpOnly", h.Get("Set-Cookie"))
	require.Empty(p.t, h.Get("Service-Worker-Allowed")+h.Get("Clear-Site-Data"))
	require.NotContains(p.t, h.Get("Access-Control-Allow-Origin"), "evil")
	require.Contains(p.t, h.Get("Content-Security-Policy"), "sandbox ")
	require.NotContains(p.t, h.Get("Content-Security-Policy"), "allow-same-origin")
}

// Large bodies both ways, and fifty requests at once.
func (p *pages) carries() {
	want := bytes.Repeat([]byte("0123456789abcdef"), 20<<20/16)
	begun := time.Now()
	_, _, big := p.get("GET", p.base+"/big", nil)
	p.t.Logf("20 MiB in %s", time.Since(begun).Round(time.Millisecond))
	require.True(p.t, bytes.Equal(want, big), "%d bytes", len(big))
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	sum := sha256.Sum256(sent)
	_, _, answer := p.get("POST", p.base+"/up", sent)
	require.Equal(p.t, hex.EncodeToString(sum[:]), string(answer))
	begun = time.Now()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if status, _, body := p.get("GET", p.base+"/asset", nil); status != http.StatusOK {
				p.t.Errorf("%d: %s", status, body)
			}
		})
	}
	all.Wait()
	p.t.Logf("50 requests at once in %s", time.Since(begun).Round(time.Millisecond))
	begun = time.Now()
	for range 20 {
		p.get("GET", p.base+"/asset", nil)
	}
	p.t.Logf("a request in %s", (time.Since(begun) / 20).Round(10*time.Microsecond))
}

// The first event is there long before the last.
func (p *pages) streams() {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.base+"/events", nil)
	require.NoError(p.t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(p.t, err)
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	line, err := r.ReadString('\n')
	require.NoError(p.t, err)
	first := time.Now()
	require.Equal(p.t, "data: 0\n", line)
	rest, err := io.ReadAll(r)
	require.NoError(p.t, err)
	require.Equal(p.t, "\ndata: 1\n\ndata: 2\n\n", string(rest))
	require.Greater(p.t, time.Since(first), 500*time.Millisecond)
}

// talks opens a WebSocket and has two messages back.
func (p *pages) talks() {
	var d net.Dialer
	conn, err := d.DialContext(p.t.Context(), "tcp", p.s.HTTP)
	require.NoError(p.t, err)
	defer conn.Close()
	require.NoError(p.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.base+"/ws", nil)
	require.NoError(p.t, err)
	for _, h := range []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Origin: http://" + p.s.HTTP} {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	require.NoError(p.t, req.Write(conn))
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, req)
	require.NoError(p.t, err)
	defer res.Body.Close() // it has none
	require.Equal(p.t, http.StatusSwitchingProtocols, res.StatusCode)
	require.Equal(p.t, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", res.Header.Get("Sec-Websocket-Accept"))
	for _, text := range []string{"hello", "again"} {
		_, err = conn.Write(append([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)) // a mask of zeros
		require.NoError(p.t, err)
		frame := make([]byte, 2+len(text))
		_, err = io.ReadFull(r, frame)
		require.NoError(p.t, err)
		require.Equal(p.t, text, string(frame[2:]))
	}
}

// refuses tries what leads nowhere.
func (p *pages) refuses(signed, token string) {
	reason := func(url string) (int, string) {
		p.t.Helper()
		status, _, body := p.get("GET", url, nil)
		var v struct {
			Error struct{ Reason, Message string }
		}
		require.NoError(p.t, json.Unmarshal(body, &v), "%s", body)
		return status, v.Error.Reason
	}
	is := func(url string, status int, want string) {
		p.t.Helper()
		gotStatus, got := reason(url)
		require.Equal(p.t, []any{status, want}, []any{gotStatus, got}, url)
	}
	at := strings.TrimSuffix(p.base, guestPort)
	for _, port := range []string{"0", "65536", "-1", "x", "080", "%38%30"} {
		is(at+port+"/", http.StatusUnprocessableEntity, "validation")
	}
	is(at+"1/", http.StatusBadGateway, "port_unavailable")
	is(strings.Replace(p.base, "/box/", "/none/", 1)+"/", http.StatusNotFound, "sandbox_not_found")

	// A token in which anything is changed is none, as is one of another kind.
	for _, bad := range []string{token[:len(token)-2], token + "AA", "B" + token[1:], flipped(token), "x"} {
		is(strings.Replace(signed, token, bad, 1)+"/", http.StatusUnauthorized, "key_invalid")
	}
	short := p.does("preview", "box", guestPort, "/asked?a=b", "--ttl", "2s")
	require.True(p.t, strings.HasSuffix(short, "/asked?a=b"), short)
	path, _ := p.asked(short)
	require.Equal(p.t, "/asked?a=b", path)
	require.Eventually(p.t, func() bool {
		status, why := reason(short)
		return status == http.StatusUnauthorized && why == "token_expired"
	}, 10*time.Second, 50*time.Millisecond)

	// A sandbox that is stopped is reached again once it runs, one that is gone never more, whatever has its name.
	p.does("stop", "box")
	is(p.base+"/", http.StatusConflict, "sandbox_stopped")
	is(signed+"/", http.StatusConflict, "sandbox_stopped")
	p.does("start", "box")
	is(p.base+"/", http.StatusBadGateway, "port_unavailable")
	p.serves()
	p.asked(signed + "/")
	p.does("delete", "box")
	is(signed+"/", http.StatusConflict, "sandbox_destroyed")
	p.does("create", "box")
	is(signed+"/", http.StatusConflict, "sandbox_destroyed")
	is(p.base+"/", http.StatusBadGateway, "port_unavailable")
}

func flipped(token string) string {
	b := []byte(token)
	if b[40]++; b[40] == 'Z'+1 || b[40] == 'z'+1 || b[40] == '9'+1 || b[40] == '_'+1 || b[40] == '-'+1 {
		b[40] -= 2
	}
	return string(b)
}
