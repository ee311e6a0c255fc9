package app_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	chunks "github.com/sandtrail/sandtrail/libs/transcript"
)

// started starts a detached command and gives its paths.
func (w *web) started(box, command, more string, headers ...string) string {
	w.t.Helper()
	a := w.send("POST", "/sandbox/"+box+"/execute", `{"command":["`+command+`"],"detach":true`+more+`}`, headers...)
	x := a.is(w.t, 202)
	require.Equal(w.t, "accepted", x["state"])
	url, _ := x["url"].(string)
	require.Equal(w.t, url, a.header.Get("Location"))
	require.Equal(w.t, x["execution_id"], a.header.Get("Sandtrail-Execution-Id"))
	return strings.TrimPrefix(url, "/api/v1")
}

func TestHTTPDetachedExecutions(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	release := make(chan struct{})
	w.peer.script("long", func(x *execution) {
		x.write(chunks.Stdout, []byte("half"))
		<-release
		x.write(chunks.Stdout, []byte(" and half"))
		x.complete(4)
	})
	at := w.started(box, "long", "", "Idempotency-Key: one")
	require.Equal(t, at, w.started(box, "long", "", "Idempotency-Key: one"), "a repeat starts nothing")
	w.until(func() bool { return w.send("GET", at, "").is(t, 200)["state"] == "running" })
	require.Nil(t, w.send("GET", at, "").is(t, 200)["outcome"])
	close(release)
	w.until(func() bool { return w.send("GET", at, "").is(t, 200)["state"] == "exited" })
	x := w.send("GET", at, "").is(t, 200)
	require.Equal(t, "half and half", x["stdout"])
	require.Equal(t, json.Number("4"), x["exit_code"])
	require.Equal(t, at, w.started(box, "long", "", "Idempotency-Key: one"), "and is answered as the first, behind the end too")

	w.send("POST", "/sandbox/"+box+"/execute", `{"command":["true"],"detach":true,"stream":true}`).problem(t, 422, "validation", "detach")
	w.send("POST", "/sandbox/"+box+"/execute", `{"command":["true"],"keep_stdin":true}`).problem(t, 422, "validation", "keep_stdin")
	w.send("POST", "/sandbox/"+box+"/execute", `{"command":["refused"],"detach":true}`).problem(t, 429, "too_many_execs")
}

// heard is one event of a stream.
type heard struct {
	id   string
	data map[string]any
}

// follow reads a stream of events behind an id, up to most events that have one, or to its end.
func (w *web) follow(t *testing.T, at, after string, most int) (all []heard, done bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+"/api/v1"+at+"/events", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Authorization", w.auth)
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	var next heard
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "id: "):
			next.id = line[4:]
		case strings.HasPrefix(line, "data: "):
			require.NoError(t, json.Unmarshal([]byte(line[6:]), &next.data))
		case line == "" && next.data != nil:
			all = append(all, next)
			if done = next.data["type"] == "done"; done || len(all) == most {
				return all, done
			}
			next = heard{}
		}
	}
	require.Fail(t, "the stream ended without its end")
	return nil, false
}

func bytesOf(t *testing.T, all []heard, stream string) (out []byte) {
	t.Helper()
	for _, h := range all {
		if h.data["type"] != stream {
			continue
		}
		text, _ := h.data["data"].(string)
		data := []byte(text)
		if h.data["encoding"] == "base64" {
			var err error
			data, err = base64.StdEncoding.DecodeString(text)
			require.NoError(t, err)
		}
		out = append(out, data...)
	}
	return out
}

// Whatever bytes a command writes, and wherever a follower is cut off, it gets each byte once, in order, and the end.
func TestHTTPFollowersResumeExactly(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	random := rand.NewChaCha8([32]byte{7})
	out, errs := make([]byte, 200_000), make([]byte, 50_000)
	random.Read(out)
	random.Read(errs)
	copy(out[1000:], "data: {\"type\":\"exit\",\"exit_code\":0}\n\nid: 99\n\n")
	copy(out[5000:], strings.Repeat("é", 4000))
	release := make(chan struct{})
	w.peer.script("random", func(x *execution) {
		for i := range 200 {
			x.write(chunks.Stdout, out[i*1000:(i+1)*1000])
			if i%4 == 0 {
				x.write(chunks.Stderr, errs[i*250:(i+4)*250])
			}
			if i == 100 {
				<-release
			}
		}
		x.complete(0)
	})
	at := w.started(box, "random", "")
	var all []heard
	last, cuts := "", 0
	for done := false; !done; cuts++ {
		if cuts == 3 {
			close(release)
		}
		var some []heard
		most := 1 + int(random.Uint64()%20)
		if cuts < 3 {
			most = 5
		}
		some, done = w.follow(t, at, last, most)
		all = append(all, some...)
		for _, h := range some {
			if h.id != "" {
				last = h.id
			}
		}
	}
	require.Greater(t, cuts, 5)
	require.Equal(t, out, bytesOf(t, all, "stdout"))
	require.Equal(t, errs, bytesOf(t, all, "stderr"))
	exit := all[len(all)-2].data
	require.Equal(t, "exit", exit["type"])
	require.InDelta(t, 0, exit["exit_code"], 0)

	// Beyond the head: nothing but the end.
	beyond, done := w.follow(t, at, "99999", 0)
	require.True(t, done)
	require.Len(t, beyond, 2)
	for _, bad := range []string{"x", "-1", "1.5", "99999999999999999999999"} {
		w.send("GET", at+"/events", "", "Last-Event-ID: "+bad).problem(t, 422, "validation", "last-event-id")
	}
	w.send("GET", at+"/events", "", "Last-Event-ID: 1", "Last-Event-ID: 2").problem(t, 422, "validation", "last-event-id")
}

// A cursor below what is kept is an error with the oldest position, never a gap.
func TestHTTPFollowersOfOutputThatIsGone(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	w.peer.script("some", func(x *execution) {
		for range 10 {
			x.write(chunks.Stdout, []byte("x"))
		}
		x.complete(0)
	})
	at := w.started(box, "some", "")
	w.until(func() bool { return w.send("GET", at, "").is(t, 200)["state"] == "exited" })
	s, err := w.JS.Stream(t.Context(), "OUT")
	require.NoError(t, err)
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	for seq := info.State.FirstSeq; seq < info.State.FirstSeq+4; seq++ {
		require.NoError(t, s.DeleteMsg(t.Context(), seq))
	}
	p := w.send("GET", at+"/events", "", "Last-Event-ID: 2").problem(t, 410, "cursor_expired", "last-event-id")
	require.Contains(t, fmt.Sprint(p["fields"]), "4")
	all, done := w.follow(t, at, "4", 0)
	require.True(t, done)
	require.Equal(t, "xxxxxx", string(bytesOf(t, all, "stdout")))
}

func TestHTTPCancel(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	at := w.started(box, "wait", "")
	w.until(func() bool { return w.send("GET", at, "").is(t, 200)["state"] == "running" })
	w.with("ApiKey "+secret("bob")).send("POST", at+"/cancel", "").problem(t, 404, "exec_not_found")
	w.send("POST", at+"/cancel", `{"why":1}`).problem(t, 422, "validation", "why")
	for range 2 {
		x := w.send("POST", at+"/cancel", "", "Idempotency-Key: c").is(t, 200)
		require.Equal(t, "cancelled", x["state"])
		require.Equal(t, json.Number("137"), x["exit_code"])
	}
}

// Standard input: every byte once, also where a write is repeated, and where the command reads slowly.
func TestHTTPStdin(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	at := w.started(box, "wait", `,"keep_stdin":true`)
	id := at[strings.LastIndexByte(at, '/')+1:]
	w.until(func() bool { return w.send("GET", at, "").is(t, 200)["state"] == "running" })
	first := w.send("POST", at+"/stdin?offset=0", "hello, \x00\xff", octets).is(t, 200)
	require.Equal(t, json.Number("9"), first["offset"])
	require.Equal(t, false, first["closed"])
	require.Equal(t, json.Number("9"), w.send("POST", at+"/stdin?offset=0", "hello, \x00\xff", octets).is(t, 200)["offset"], "a repeat adds nothing")
	w.send("POST", at+"/stdin?offset=20", "gap", octets).problem(t, 422, "validation")
	w.send("POST", at+"/stdin", "x", octets).problem(t, 422, "validation", "offset")
	w.send("POST", at+"/stdin?offset=-1&close=maybe", "x", octets).problem(t, 422, "validation", "offset", "close")
	w.send("POST", at+"/stdin?offset=0", strings.Repeat("x", 512<<10+1), octets).problem(t, 413, "too_large")
	w.with("ApiKey "+secret("bob")).send("POST", at+"/stdin?offset=0", "x", octets).problem(t, 404, "exec_not_found")
	end := w.send("POST", at+"/stdin?offset=9&close=true", "world", octets).is(t, 200)
	require.Equal(t, true, end["closed"])
	w.send("POST", at+"/stdin?offset=14", "late", octets).problem(t, 409, "illegal_state")
	w.peer.set(func() { require.Equal(t, "hello, \x00\xffworld", string(w.peer.inputs[id])) })

	w.send("POST", at+"/cancel", "").is(t, 200)
	w.send("POST", at+"/stdin?offset=14", "late", octets).problem(t, 409, "illegal_state")
	plain := w.started(box, "wait", "")
	w.until(func() bool { return w.send("GET", plain, "").is(t, 200)["state"] == "running" })
	w.send("POST", plain+"/stdin?offset=0", "x", octets).problem(t, 409, "illegal_state")
}
