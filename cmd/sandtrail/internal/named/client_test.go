package named_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/libs/fault"
)

func TestAKeyDoesNotLeaveTheHostInClear(t *testing.T) {
	for url, ok := range map[string]bool{
		"http://localhost:8080": true, "http://127.0.0.1:1": true, "http://[::1]:1": true, "https://sandtrail.example": true, "http://sandtrail.example": false,
	} {
		_, err := named.New(named.Options{URL: url, Key: "k"})
		require.Equal(t, ok, err == nil, url)
		_, err = named.New(named.Options{URL: url})
		require.NoError(t, err)
	}
	for _, url := range []string{"", "localhost:8080", "ftp://x", "http://", "http://x?y"} {
		_, err := named.New(named.Options{URL: url})
		require.Error(t, err, url)
	}
}

func serve(t *testing.T, h http.HandlerFunc) *named.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := named.New(named.Options{URL: s.URL, Key: "k", Tenant: "acme"})
	require.NoError(t, err)
	return c
}

func TestRefusalsAreFaults(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fault":
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"message":"m","error":{"code":"conflict","reason":"name_taken","message":"taken","fields":[{"field":"name","message":"x"}]}}`)
		case "/plain":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"nothing here"}`)
		case "/away":
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		default:
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html>")
		}
	})
	get := func(path string) *fault.Error {
		_, err := c.Raw(t.Context(), named.Request{Method: http.MethodGet, Path: path})
		return fault.From(err)
	}
	f := get("/fault")
	require.Equal(t, []any{fault.Conflict, fault.ReasonNameTaken, "taken", "x"}, []any{f.Code, f.Reason, f.Message, f.Fields["name"]})
	f = get("/plain")
	require.Equal(t, fault.NotFound, f.Code)
	require.Contains(t, f.Message, "nothing here")
	require.Contains(t, get("/away").Message, "302")
	require.Contains(t, get("/other").Message, "502")
}

// The output arrives byte for byte, an end that did not come is lost, and nothing in the output is taken for an end.
func TestRunIsByteExact(t *testing.T) {
	data := []byte("a\n\nevent: exit\ndata: 0\n\n\x00\xff\r")
	var end string
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = []string{
			r.URL.Query().Get("sandbox"), r.URL.Query().Get("framing"), r.Header.Get("Authorization"), r.Header.Get("X-Sandtrail-Tenant"),
		}
		w.Header().Set("Sandtrail-Execution-Id", "x1")
		for _, name := range []string{"stdout", "stderr"} {
			for i := range data {
				fmt.Fprintf(w, "event: %s\ndata: %s\n\n\n", name, base64.StdEncoding.EncodeToString(data[i:i+1]))
			}
		}
		_, _ = io.WriteString(w, end)
	})
	run := func() (code int, warned []string, err error) {
		var out, errs bytes.Buffer
		code, err = c.Run(t.Context(), "box", named.Command{Language: "bash", Code: "x"}, &out, &errs, func(s string) { warned = append(warned, s) })
		require.Equal(t, []string{"box", "base64", "Bearer k", "acme"}, asked)
		require.Equal(t, string(data), out.String())
		require.Equal(t, string(data), errs.String())
		return code, warned, err
	}
	end = "event: exit\ndata: 7\n\n"
	code, _, err := run()
	require.NoError(t, err)
	require.Equal(t, 7, code)
	for _, end = range []string{"", "event: error\ndata: the sandbox is lost\n\n", "event: exit\ndata: x\n\n"} {
		_, _, err = run()
		require.True(t, fault.Is(err, fault.ReasonExecLost), "%v", err)
		require.Contains(t, err.Error(), "x1")
	}
	end = "event: error\ndata: 5 bytes were dropped\n\nevent: error\ndata: and 6\n\nevent: exit\ndata: 0\n\n"
	_, warned, err := run()
	require.NoError(t, err)
	require.Equal(t, []string{"5 bytes were dropped", "and 6"}, warned)
}

// A stream that is cut at every byte is taken up again behind the last whole event: each byte once, and the end.
func TestAttachIsByteExactWhereverItIsCut(t *testing.T) {
	chunks := []string{"a\n\n", "event: exit\ndata: 0\n\n", "\x00\xff\r", "last"}
	whole := func(after int) string {
		var b strings.Builder
		for i, data := range chunks {
			if i >= after {
				fmt.Fprintf(&b, "id: %d\nevent: stdout\ndata: %s\n\n\n", i+1, base64.StdEncoding.EncodeToString([]byte(data)))
			}
		}
		return b.String() + "event: exit\ndata: 7\n\n"
	}
	want := strings.Join(chunks, "")
	for cut := 0; cut < len(whole(0)); cut += 23 {
		first := true
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			after, err := strconv.Atoi(r.URL.Query().Get("after"))
			if err != nil || r.URL.Path != "/api/v1/sandboxes/box/executions/x1/stream" || r.URL.Query().Get("framing") != "base64" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if !first {
				_, _ = io.WriteString(w, whole(after))
				return
			}
			first = false
			_, _ = io.WriteString(w, whole(after)[:cut])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		var out bytes.Buffer
		code, err := c.Attach(t.Context(), "box", "x1", 0, &out, io.Discard, func(s string) { t.Error(s) })
		require.NoError(t, err, "cut at %d", cut)
		require.Equal(t, []any{7, want}, []any{code, out.String()}, "cut at %d", cut)
	}
}

func TestAttachToWhatIsNotThereOrLost(t *testing.T) {
	answer := ""
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"m","error":{"code":"not_found","reason":"exec_not_found","message":"there is no exec"}}`)
			return
		}
		_, _ = io.WriteString(w, answer)
	})
	attach := func() (warned []string, err error) {
		_, err = c.Attach(t.Context(), "box", "x1", 3, io.Discard, io.Discard, func(s string) { warned = append(warned, s) })
		return warned, err
	}
	_, err := attach()
	require.True(t, fault.Is(err, fault.ReasonExecNotFound), "%v", err)
	answer = "id: 4\nevent: error\ndata: 5 bytes were dropped\n\nevent: error\ndata: the sandbox is lost\n\n"
	warned, err := attach()
	require.True(t, fault.Is(err, fault.ReasonExecLost), "%v", err)
	require.Equal(t, []string{"5 bytes were dropped"}, warned)
}

// Standard input goes in once, whatever the exec takes at a time and however often an answer is lost.
func TestInputGoesInOnce(t *testing.T) {
	const had = "before "
	taken, closed, asked := had, false, 0
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		asked++
		if q := r.URL.Query(); q.Has("offset") {
			offset, err := strconv.Atoi(q.Get("offset"))
			if err != nil || offset > len(taken) {
				w.WriteHeader(http.StatusUnprocessableEntity)
				return
			}
			fresh := string(data)[min(len(taken)-offset, len(data)):]
			n := min(5, len(fresh))
			taken += fresh[:n]
			closed = q.Get("close") == "true" && n == len(fresh)
		}
		if asked%3 == 2 {
			panic(http.ErrAbortHandler) // it was taken, and nobody hears of it
		}
		fmt.Fprintf(w, `{"offset":%d}`, len(taken))
	})
	text := strings.Repeat("0123456789", 3)
	require.NoError(t, c.Input(t.Context(), "box", "x1", iotest.HalfReader(strings.NewReader(text))))
	require.Equal(t, had+text, taken)
	require.True(t, closed)
	taken, closed = had, false
	require.NoError(t, c.Input(t.Context(), "box", "x1", strings.NewReader("")))
	require.Equal(t, []any{had, true}, []any{taken, closed})
}
