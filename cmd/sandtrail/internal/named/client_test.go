package named_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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
