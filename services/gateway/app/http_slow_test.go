package app_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// impatient is a gateway that gives its clients little time.
func impatient(t *testing.T) *web {
	t.Helper()
	return newWeb(t, func(c *app.Config) {
		c.HeadTime, c.BodyTime, c.IdleTime = 500*time.Millisecond, 500*time.Millisecond, time.Second
	})
}

// drip sends a text, then one more byte at a time until the connection is closed, and returns all that came.
func drip(t *testing.T, addr, text string, more byte) string {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	got := make(chan string, 1)
	go func() {
		data, err := io.ReadAll(conn)
		if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // it is the connection's own
			t.Errorf("the connection of %.40q stays open", text)
		}
		got <- string(data)
	}()
	_, err = io.WriteString(conn, text)
	beat := time.NewTicker(50 * time.Millisecond)
	defer beat.Stop()
	for {
		select {
		case all := <-got:
			return all
		case <-beat.C:
			if err == nil {
				_, err = conn.Write([]byte{more})
			}
		}
	}
}

// Heads that come byte by byte never become requests, cost their senders the connection, and keep nobody else waiting.
func TestHTTPHeadsThatComeSlowly(t *testing.T) {
	w := impatient(t)
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if got := drip(t, w.app.HTTP(), "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\nX-Slow: ", 'x'); got != "" {
				t.Errorf("answered %q", got)
			}
		})
	}
	w.send("GET", "/sandbox", "").is(t, 200)
	all.Wait()
}

// Bodies that come byte by byte, or stop, end with their time: whether a handler reads them or not, with a credential or without.
func TestHTTPBodiesThatComeSlowly(t *testing.T) {
	w := impatient(t)
	box := w.box()
	before := w.peer.count("cmd.")
	auth := "Authorization: " + w.auth + "\r\n"
	const media, length = "Content-Type: application/json\r\n", "Content-Length: 1000\r\n"
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		line, headers, body string
		status              int
	}{
		"create":            {"POST /api/v1/sandbox/create", auth + media + length, `{"cpus":"`, 400},
		"nothing of it":     {"POST /api/v1/sandbox/create", auth + media + length, "", 400},
		"chunked":           {"POST /api/v1/sandbox/create", auth + media + "Transfer-Encoding: chunked\r\n", "3e8\r\n{", 400},
		"a file":            {"PUT /api/v1/sandbox/" + box + "/files?path=f", auth + length, "x", 400},
		"stop":              {"POST /api/v1/sandbox/" + box + "/stop", auth + length, "{", 400},
		"too large":         {"POST /api/v1/sandbox/create", auth + media + "Content-Length: 100000000\r\n", "{", 413},
		"without a key":     {"POST /api/v1/sandbox/create", media + length, "{", 401},
		"of another type":   {"POST /api/v1/sandbox/create", auth + length, "{", 415},
		"where none is":     {"GET /api/v1/sandbox", auth + length, "{", 200},
		"to no route":       {"POST /api/v1/nothing", auth + length, "{", 404},
		"to a crooked path": {"GET /api/v1//sandbox", auth + length, "{", 307},
		"to health":         {"GET /healthz", length, "{", 200},
	} {
		all.Go(func() {
			got := drip(t, w.app.HTTP(), c.line+" HTTP/1.1\r\nHost: h\r\n"+c.headers+"\r\n"+c.body, ' ')
			if !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", c.status)) || strings.Count(got, "HTTP/1.1 ") != 1 {
				t.Errorf("%s: answered %q", name, got)
			}
		})
	}
	all.Wait()
	require.Equal(t, before, w.peer.count("cmd."), "nothing was asked for")
	w.send("GET", "/sandbox", "").is(t, 200)
}

// Over HTTP/2 a body that stops is refused by its time, and a head that stops costs the connection.
func TestHTTP2RequestsThatStop(t *testing.T) {
	w := impatient(t)
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":authority", "h"},
		{":path", "/api/v1/sandbox/create"},
		{"authorization", w.auth},
		{"content-type", "application/json"},
	} {
		require.NoError(t, e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	open := func() (net.Conn, *http2.Framer) {
		conn, err := net.Dial("tcp", w.app.HTTP())
		require.NoError(t, err)
		conn.SetDeadline(time.Now().Add(patience))
		_, err = io.WriteString(conn, http2.ClientPreface)
		require.NoError(t, err)
		f := http2.NewFramer(conn, conn)
		f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		require.NoError(t, f.WriteSettings())
		return conn, f
	}
	conn, f := open()
	defer conn.Close()
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	require.NoError(t, f.WriteData(1, false, []byte(`{"cpus":`)))
	status := ""
	for status == "" {
		frame, err := f.ReadFrame()
		require.NoError(t, err)
		if h, ok := frame.(*http2.MetaHeadersFrame); ok {
			status = h.PseudoValue("status")
		}
	}
	require.Equal(t, "400", status)

	half, f := open()
	defer half.Close()
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()[:block.Len()/2]}))
	var err error
	for err == nil {
		_, err = f.ReadFrame()
	}
	require.NotErrorIs(t, err, io.ErrNoProgress)
	timeout, ok := err.(net.Error) //nolint:errorlint // it is the connection's own
	require.False(t, ok && timeout.Timeout(), "the connection stays open")
}

// What a length beside chunks hides from a proxy is no request here: nothing behind a body in chunks is one.
func TestHTTPNothingBehindChunksIsARequest(t *testing.T) {
	w := newWeb(t)
	head := "POST /api/v1/sandbox/create HTTP/1.1\r\nHost: h\r\nAuthorization: " + w.auth + "\r\nContent-Type: application/json\r\n"
	hidden := head + "Content-Length: 2\r\n\r\n{}"
	for name, raw := range map[string]string{
		"a length beside chunks":  head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + hidden,
		"chunks alone":            head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + hidden,
		"chunks with extensions":  head + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n" + hidden,
		"where no body is wanted": "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\nAuthorization: " + w.auth + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
	} {
		conn, err := net.Dial("tcp", w.app.HTTP())
		require.NoError(t, err)
		conn.SetDeadline(time.Now().Add(patience))
		_, err = io.WriteString(conn, raw)
		require.NoError(t, err)
		answers, _ := io.ReadAll(conn)
		require.NoError(t, conn.Close())
		require.Equal(t, 1, strings.Count(string(answers), "HTTP/1.1 "), "%s: %s", name, answers)
		require.Contains(t, string(answers), "Connection: close", name)
	}
}

// Heads are bounded, whatever of them is large.
func TestHTTPHeadsThatAreTooLarge(t *testing.T) {
	w := newWeb(t)
	large := strings.Repeat("x", 32<<10)
	for name, head := range map[string]string{
		"path":    "GET /api/v1/" + large + " HTTP/1.1\r\nHost: h\r\n\r\n",
		"header":  "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\nX: " + large + "\r\n\r\n",
		"headers": "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: y\r\n", 6<<10) + "\r\n",
		"key":     "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\nAuthorization: ApiKey " + large + "\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", w.app.HTTP())
		require.NoError(t, err)
		conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, head) // it may be refused before all of it is sent
		answer, _ := io.ReadAll(conn)
		require.NoError(t, conn.Close())
		require.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 431 "), "%s: %s", name, answer)
	}
}
