package named_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// A download whose connection breaks goes on where it was, as long as the file is the same.
func TestADownloadThatBreaksOff(t *testing.T) {
	data := strings.Repeat("0123456789", 10_000)
	for name, c := range map[string]struct {
		tag  string
		same bool
	}{
		"the same file": {`"one"`, true},
		"another one":   {`"one"`, false},
		"no strong tag": {`W/"one"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				w.Header().Set("ETag", c.tag)
				w.Header().Set("X-File-Mode", "0750")
				w.Header().Set("X-File-Modified", "2001-02-03T04:05:06.7Z")
				from := 0
				if calls > 1 {
					if r.Header.Get("If-Range") != c.tag || !c.same {
						_, _ = io.WriteString(w, "new")
						return
					}
					_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
					w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
					w.WriteHeader(http.StatusPartialContent)
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
				if calls == 3 {
					_, _ = io.WriteString(w, data[from:])
					return
				}
				_, _ = io.WriteString(w, data[from:from+30_000])
				panic(http.ErrAbortHandler)
			}))
			defer srv.Close()
			api, err := named.New(named.Options{URL: srv.URL})
			require.NoError(t, err)
			d, err := api.Download(t.Context(), "box", "f")
			require.NoError(t, err)
			defer d.Close()
			require.EqualValues(t, len(data), d.Size())
			mode, modified := d.Kept()
			require.EqualValues(t, 0o750, mode)
			require.True(t, modified.Equal(time.Date(2001, 2, 3, 4, 5, 6, 700_000_000, time.UTC)))
			got, err := io.ReadAll(d)
			if c.same && c.tag[0] == '"' {
				require.NoError(t, err)
				require.Equal(t, data, string(got))
				require.Equal(t, 3, calls)
				return
			}
			require.Error(t, err)
			require.Less(t, len(got), len(data))
		})
	}
}

// What keeps a file from being read here is told, and not that the server went away; a refusal half way is the server's.
func TestUploadsThatFail(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("path") == "full" {
			w.WriteHeader(http.StatusInsufficientStorage)
			_, _ = io.WriteString(w, `{"error":{"code":"resource_exhausted","reason":"disk_full","message":"the workspace is full"}}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	defer srv.Close()
	api, err := named.New(named.Options{URL: srv.URL})
	require.NoError(t, err)
	broken := io.MultiReader(strings.NewReader("x"), failing{})
	err = api.Upload(t.Context(), named.Upload{Box: "b", Path: "f", Name: "f", Data: broken}, &struct{}{})
	require.ErrorIs(t, err, errLocal)
	err = api.Upload(t.Context(), named.Upload{Box: "b", Path: "full", Name: "f", Data: io.LimitReader(endless{}, 64<<20)}, &struct{}{})
	require.True(t, fault.Is(err, fault.ReasonDiskFull), "%v", err)
	require.NoError(t, api.UploadTree(t.Context(), "b", "t", func(w io.Writer) error {
		_, err := io.WriteString(w, "archive")
		return err
	}, &struct{}{}))
}

var errLocal = fmt.Errorf("the disk here is broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errLocal }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
