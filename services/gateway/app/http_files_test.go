package app_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

func digest(data string) string {
	sum := sha256.Sum256([]byte(data))
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

const octets = "Content-Type: application/octet-stream"

// content is a file that has a name for every byte.
func (w *web) content(path string, size int) string {
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "%08d", b.Len())
	}
	data := b.String()[:size]
	w.peer.set(func() { w.peer.files[path] = []byte(data) })
	return data
}

func TestHTTPRangesOfFiles(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	data := w.content("f", 1_300_000)
	at := "/sandbox/" + box + "/files?path=f"
	whole := w.send("GET", at, "")
	require.Equal(t, 200, whole.status)
	require.Equal(t, data, string(whole.body))
	require.Equal(t, "bytes", whole.header.Get("Accept-Ranges"))
	tag := whole.header.Get("ETag")
	require.Regexp(t, `^"[0-9a-f]{24}"$`, tag)
	for _, c := range []struct {
		name, header  string
		from, to, all int // to is not part of it
		status        int
	}{
		{"first", "bytes=0-99", 0, 100, 1_300_000, 206},
		{"over parts", "bytes=500000-1200000", 500_000, 1_200_001, 1_300_000, 206},
		{"open", "bytes=1299990-", 1_299_990, 1_300_000, 1_300_000, 206},
		{"suffix", "bytes=-5", 1_299_995, 1_300_000, 1_300_000, 206},
		{"suffix over all", "bytes=-9999999", 0, 1_300_000, 1_300_000, 206},
		{"end behind the end", "bytes=1299999-99999999999999999999", 1_299_999, 1_300_000, 1_300_000, 206},
		{"begins behind the end", "bytes=1300000-", 0, 0, 1_300_000, 416},
		{"nothing", "bytes=-0", 0, 0, 1_300_000, 416},
		{"several", "bytes=0-1,5-6", 0, 1_300_000, 0, 200},
		{"another unit", "lines=0-1", 0, 1_300_000, 0, 200},
		{"no range", "bytes=5-2", 0, 1_300_000, 0, 200},
		{"no number", "bytes=a-b", 0, 1_300_000, 0, 200},
		{"sign", "bytes=+1-2", 0, 1_300_000, 0, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := w.send("GET", at, "", "Range: "+c.header)
			require.Equal(t, c.status, a.status)
			switch c.status {
			case 416:
				a.problem(t, 416, "range_not_satisfiable")
				require.Equal(t, "bytes */1300000", a.header.Get("Content-Range"))
				return
			case 206:
				require.Equal(t, fmt.Sprintf("bytes %d-%d/%d", c.from, c.to-1, c.all), a.header.Get("Content-Range"))
			default:
				require.Empty(t, a.header.Get("Content-Range"))
			}
			require.Equal(t, data[c.from:c.to], string(a.body))
		})
	}
	require.Equal(t, 206, w.send("GET", at, "", "Range: bytes=0-1", "If-Range: "+tag).status)
	require.Equal(t, 200, w.send("GET", at, "", "Range: bytes=0-1", `If-Range: "other"`).status, "another version comes whole")
	require.Equal(t, 304, w.send("GET", at, "", "If-None-Match: W/"+tag).status)
	require.Equal(t, 304, w.send("GET", at, "", `If-None-Match: "x", `+tag).status)
	w.peer.set(func() { w.peer.unsettled = true })
	weak := w.send("GET", at, "").header.Get("ETag")
	require.Equal(t, "W/"+tag, weak)
	require.Equal(t, 200, w.send("GET", at, "", "Range: bytes=0-1", "If-Range: "+weak).status, "a weak tag does not join parts")
	w.content("empty", 0)
	w.send("GET", "/sandbox/"+box+"/files?path=empty", "", "Range: bytes=0-").problem(t, 416, "range_not_satisfiable")
	w.send("GET", "/sandbox/"+box+"/files?path=none", "").problem(t, 404, "path_not_found")
}

func TestHTTPHeadAndDigestOfFiles(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	data := w.content("f", 700_000)
	at := "/sandbox/" + box + "/files?path=f"
	require.Empty(t, w.send("GET", at, "").header.Get("Repr-Digest"), "nobody pays for what was not asked for")
	require.Equal(t, digest(data), w.send("GET", at, "", "Want-Repr-Digest: sha-256=1", "Range: bytes=0-1").header.Get("Repr-Digest"), "of the whole")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, w.base+"/api/v1"+at, http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Authorization", w.auth)
	req.Header.Set("Want-Repr-Digest", "sha-256=10")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
	require.EqualValues(t, len(data), res.ContentLength)
	require.Equal(t, digest(data), res.Header.Get("Repr-Digest"))
}

// Parts of two versions of a file never become one answer.
func TestHTTPAFileThatChangesWhileItIsRead(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	at := "/sandbox/" + box + "/files?path=f"
	w.content("f", 1_300_000)
	var reads atomic.Int32
	w.peer.set(func() {
		w.peer.onRead = func(*commandsv1.ReadPart) { // under the peer's lock
			if reads.Add(1) == 2 {
				w.peer.files["f"] = bytes.Repeat([]byte("x"), 1_300_000)
			}
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.base+"/api/v1"+at, http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Authorization", w.auth)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.ReadAll(res.Body)
	require.Error(t, err, "the connection is cut")

	// One that changes before anything was sent is read as it is.
	w.peer.set(func() {
		w.peer.onRead = func(r *commandsv1.ReadPart) {
			if reads.Add(1) == 5 {
				w.peer.files["f"] = []byte("new")
			}
		}
	})
	reads.Store(4)
	require.Equal(t, "new", string(w.send("GET", at, "").body))
}

// A file of any size is written from a body, with what a part holds in memory; nothing of it shows before its end.
func TestHTTPLargeUploads(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	at := "/sandbox/" + box + "/files?path=f"
	data := strings.Repeat("0123456789abcdef", 300_001)
	a := w.send("PUT", at, data, octets, "Content-Digest: "+digest(data), "Repr-Digest: "+digest(data), "Idempotency-Key: one")
	x := a.is(t, 200)
	require.Equal(t, json.Number(fmt.Sprint(len(data))), x["size"])
	require.Equal(t, digest(data), a.header.Get("Repr-Digest"))
	require.Equal(t, data, string(w.send("GET", at, "").body))
	writes := w.peer.get(func() int { return w.peer.appends })
	again := w.send("PUT", at, data, octets, "Idempotency-Key: one")
	require.Equal(t, string(a.body), string(again.body))
	require.Equal(t, writes, w.peer.get(func() int { return w.peer.appends }), "written once")
	w.send("PUT", at, data+"x", octets, "Idempotency-Key: one").problem(t, 409, "idempotency_mismatch", "idempotency-key")

	w.send("PUT", at, data, octets, "Content-Digest: "+digest("other")).problem(t, 422, "digest_mismatch", "content-digest")
	w.send("PUT", at, data, octets, "Repr-Digest: "+digest("other")).problem(t, 422, "digest_mismatch", "repr-digest")
	w.send("PUT", at, data, octets, "Content-Digest: sha-256=abc").problem(t, 422, "validation", "content-digest")
	w.send("PUT", at, data, octets, "Content-Range: bytes 0-1/2").problem(t, 422, "validation", "content-range")
	w.send("PUT", at+"&mode=9", data, octets).problem(t, 422, "validation", "mode")
	require.Equal(t, 200, w.send("PUT", at, "short", octets, "Content-Digest: md5=:x:, "+digest("short")).status)
	w.until(func() bool { return w.peer.unfinished() == 0 })
	require.Equal(t, "short", string(w.send("GET", at, "").body))
}

// unfinished is how many uploads lie in the workspace.
func (p *peer) unfinished() int {
	return p.get(func() (n int) {
		for id := range p.uploads {
			if !strings.HasPrefix(id, "done ") {
				n++
			}
		}
		return n
	})
}

// An upload whose end does not come leaves the file as it was, and nothing behind.
func TestHTTPTruncatedUploads(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	at := "/sandbox/" + box + "/files?path=f"
	require.Equal(t, 200, w.send("PUT", at, "before", octets).status)
	for name, head := range map[string]string{
		"length":  "Content-Length: 9000000\r\n\r\n" + strings.Repeat("x", 2_000_000),
		"chunked": "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat("x", 0x200000) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", w.app.HTTP())
			require.NoError(t, err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "PUT /api/v1%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n%s\r\n%s", at, w.auth, octets, head)
			require.NoError(t, err)
			w.until(func() bool { return w.peer.unfinished() == 1 })
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Contains(t, string(answer), "400 Bad Request")
			require.Contains(t, string(answer), "malformed_request")
			w.until(func() bool { return w.peer.unfinished() == 0 })
			require.Equal(t, "before", string(w.send("GET", at, "").body))
		})
	}
}

// A repeated upload whose first answer was lost behind its end is found, not made again.
func TestHTTPAnUploadWhoseEndWasLost(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	at := "/sandbox/" + box + "/files?path=f"
	data := strings.Repeat("y", 1_200_000)
	w.peer.set(func() {
		w.peer.onPart = func(p *commandsv1.WritePart) error {
			if !p.GetLast() {
				return nil
			}
			w.peer.set(func() { w.peer.onPart = nil; _, _ = w.peer.write(p) })
			return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the answer is lost")
		}
	})
	w.send("PUT", at, data, octets, "Idempotency-Key: one").problem(t, 503, "toolbox_unavailable")
	w.peer.set(func() { w.peer.files["f"] = []byte("of somebody else, meanwhile") })
	require.Equal(t, 200, w.send("PUT", at, data, octets, "Idempotency-Key: one").status)
	require.Equal(t, 1, w.peer.get(func() int { return w.peer.appends }))
	require.Equal(t, "of somebody else, meanwhile", string(w.send("GET", at, "").body))
}

// The gateway holds parts, not files: 256 MiB go through it and back in a fraction of that.
func TestHTTPLargeFilesInFlatMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: moves 256 MiB")
	}
	if !alone(t) {
		return
	}
	w := newWeb(t)
	box := w.box()
	const size = 256 << 20
	w.peer.blackHole(size)
	at := w.base + "/api/v1/sandbox/" + box + "/files?path=big"
	before, peak := heap(), &heapPeak{}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	do := func(method string, body io.Reader) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, at, body)
		require.NoError(t, err)
		req.Header.Set("Authorization", w.auth)
		req.Header.Set("Content-Type", "application/octet-stream")
		res, err := client.Do(req)
		require.NoError(t, err)
		require.Equal(t, 200, res.StatusCode)
		return res
	}
	do(http.MethodPut, io.TeeReader(io.LimitReader(zeros{}, size), peak)).Body.Close()
	res := do(http.MethodGet, http.NoBody)
	n, err := io.Copy(peak, res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.EqualValues(t, size, n)
	peak.below(t, before, size/4)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestHTTPDeleteFiles(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.content("f", 10)
	at := "/sandbox/" + box + "/files?path=f"
	w.send("DELETE", at+"&recursive=perhaps", "").problem(t, 422, "validation", "recursive")
	w.send("DELETE", "/sandbox/"+box+"/files", "").problem(t, 422, "validation", "path")
	first := w.send("DELETE", at, "", "Idempotency-Key: one")
	require.Equal(t, true, first.is(t, 200)["success"])
	w.content("f", 10)
	require.Equal(t, string(first.body), string(w.send("DELETE", at, "", "Idempotency-Key: one").body))
	require.Equal(t, 200, w.send("GET", at, "").status, "a repeated delete removes nothing")
	w.send("DELETE", at+"&recursive=true", "", "Idempotency-Key: one").problem(t, 409, "idempotency_mismatch", "idempotency-key")
	w.send("DELETE", at, "").is(t, 200)
	w.send("DELETE", at, "").problem(t, 404, "path_not_found")
}

func TestHTTPDirectoriesInPages(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.peer.set(func() { w.peer.listed = true })
	for i := range 7 {
		w.content(fmt.Sprintf("f%d", i), 1)
	}
	var seen []string
	for cursor := ""; ; {
		page := w.send("GET", "/sandbox/"+box+"/files/list?limit=3&cursor="+cursor, "").is(t, 200)
		for _, e := range page["entries"].([]any) {
			seen = append(seen, e.(map[string]any)["path"].(string))
		}
		require.Equal(t, page["truncated"], page["next_cursor"] != "")
		if cursor, _ = page["next_cursor"].(string); cursor == "" {
			break
		}
	}
	require.Equal(t, []string{"f0", "f1", "f2", "f3", "f4", "f5", "f6"}, seen)
	w.send("GET", "/sandbox/"+box+"/files/list?limit=1001&cursor=%25", "").problem(t, 422, "validation", "limit", "cursor")
}
