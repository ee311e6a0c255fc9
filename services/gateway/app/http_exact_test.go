package app_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
)

var update = flag.Bool("update", false, "write the files that tests compare with anew")

// wrongHeaders are requests each of which has one header that is missing, given twice, of another kind, too long or unknown.
func wrongHeaders(box, auth string) (all []wrongRequest) {
	good := []string{"Authorization: " + auth, "Idempotency-Key: KEY", "Content-Type: application/json"}
	without := func(name string) (left []string) {
		for _, h := range good {
			if !strings.HasPrefix(h, name+":") {
				left = append(left, h)
			}
		}
		return left
	}
	routes := []wrongRequest{
		{method: "POST", path: "/sandbox/create", body: `{}`},
		{method: "POST", path: "/sandbox/" + box + "/execute", body: `{"command":["true"]}`},
	}
	for _, r := range routes {
		add := func(name string, headers ...string) {
			all = append(all, wrongRequest{name: name, method: r.method, path: r.path, body: r.body, headers: headers})
		}
		for name, values := range map[string][]string{
			"Authorization": {
				"", "ApiKey", "ApiKey ", "apikey", "Basic YTpi", "Bearer", "Bearer ", "ApiKey nobody", "ApiKey " + strings.Repeat("k", 8000), "ApiKey a b",
				strings.TrimPrefix(auth, "ApiKey "),
			},
			"Idempotency-Key": {
				"", " ", "a b", "a\tb", "schlüssel", "\x7f", strings.Repeat("k", 201), strings.Repeat("k", 8000),
			},
			"Content-Type": {
				"", "text/plain", "application/xml", "application/json, application/json", "application/json; charset", "json",
				strings.Repeat("x", 8000),
			},
			"Content-Encoding": {"gzip", "br", "x", "identity, gzip"},
		} {
			rest := without(name)
			if len(rest) < len(good) {
				add(name+" missing", rest...)
				var given string
				for _, h := range good {
					if strings.HasPrefix(h, name+":") {
						given = h
					}
				}
				add(name+" twice", append(append([]string{}, rest...), given, given)...)
			}
			for _, v := range values {
				add(fmt.Sprintf("%s %.40q", name, v), append(append([]string{}, rest...), name+": "+v)...)
			}
		}
		add("X-Unheard-Of", append(append([]string{}, good...), "X-Unheard-Of: x")...)
		add("X-Correlation-Id too long", append(append([]string{}, good...), "X-Correlation-Id: "+strings.Repeat("x", 4000))...)
		add("X-Correlation-Id twice", append(append([]string{}, good...), "X-Correlation-Id: a", "X-Correlation-Id: b")...)
		add("traceparent of no kind", append(append([]string{}, good...), "traceparent: nonsense")...)
		for _, n := range []int{1, 200} {
			add(fmt.Sprintf("Idempotency-Key of %d", n), append(without("Idempotency-Key"), "Idempotency-Key: "+strings.Repeat(string("ac"[len(all)%2]), n))...)
		}
	}
	return all
}

// wrongFields are requests each of which has one field that is null, given twice, of another kind, too long or unknown.
func wrongFields(box, auth string) (all []wrongRequest) {
	long := strings.Repeat("x", 600<<10)
	kinds := map[string][]string{
		"string":  {`null`, `7`, `true`, `[]`, `{}`, `""`, `"` + long + `"`, `"a\u0000b"`},
		"number":  {`null`, `"7"`, `true`, `[]`, `{}`, `0`, `-1`, `1.5`, `1e3`, `99999999999999999999`},
		"flag":    {`null`, `"true"`, `1`, `[]`, `{}`},
		"map":     {`null`, `7`, `"A=1"`, `[]`, `{"A":7}`, `{"A":null}`, `{"":"x"}`, `{"A=":"x"}`, `{"A":"` + long + `"}`, `{"A":"1","A":"2"}`},
		"command": {`null`, `7`, `{}`, `[]`, `""`, `[""]`, `[7]`, `[null]`, `[[]]`, `["a\u0000"]`, `["` + long + `"]`},
	}
	for _, r := range []struct {
		path, rest string
		fields     map[string]string
	}{
		{"/sandbox/create", "", map[string]string{
			"desktop_os": "string", "cpus": "number", "memory": "string", "isolation": "string", "timeout_seconds": "number", "idle_timeout_seconds": "number", "image": "string",
			"env": "map",
		}},
		{"/sandbox/" + box + "/execute", `"command":["true"]`, map[string]string{
			"command": "command", "working_dir": "string", "env": "map", "timeout": "number", "stdin": "string", "stream": "flag",
		}},
	} {
		add := func(name, body string) {
			all = append(all, wrongRequest{name: name, method: "POST", path: r.path, body: body, headers: []string{
				"Authorization: " + auth, "Idempotency-Key: KEY", "Content-Type: application/json",
			}})
		}
		add("unknown", fmt.Sprintf(`{%s"surprise":1}`, comma(r.rest)))
		for field, kind := range r.fields {
			rest := comma(r.rest)
			if field == "command" {
				rest = ""
			}
			for _, v := range kinds[kind] {
				add(fmt.Sprintf("%s %.40s", field, v), fmt.Sprintf(`{%s%q:%s}`, rest, field, v))
			}
			good := map[string]string{"command": `["true"]`}[field]
			if good == "" {
				good = "null"
			}
			add(field+" twice", fmt.Sprintf(`{%s%q:%s,%q:%s}`, rest, field, good, field, good))
			add(field+" in other letters", fmt.Sprintf(`{%s%q:1}`, comma(r.rest), strings.ToUpper(field)))
		}
	}
	return all
}

func comma(s string) string {
	if s == "" {
		return ""
	}
	return s + ","
}

// wrongRequest is one that is made as it stands.
type wrongRequest struct {
	name, method, path, body string
	headers                  []string
}

// told is the whole answer to a refused request, but for what differs from call to call. Of one that is let in it is the status.
func (w *web) told(r wrongRequest, box string) string {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), r.method, w.base+"/api/v1"+r.path, strings.NewReader(r.body))
	require.NoError(w.t, err)
	for _, h := range r.headers {
		name, value, _ := strings.Cut(h, ": ")
		if value == "KEY" {
			value = ids.New()
		}
		req.Header[name] = append(req.Header[name], value)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "not sent: the client's library refuses it"
	}
	a := read(w.t, res)
	text := strings.ReplaceAll(string(a.body), a.header.Get("X-Correlation-Id"), "ID")
	if a.status < 300 {
		text = ""
	}
	return strings.ReplaceAll(fmt.Sprintf("%d %s", a.status, strings.TrimSpace(text)), box, "BOX")
}

var repeated = regexp.MustCompile(`x{40,}|k{40,}`)

// Each header and field that is missing, given twice, of another kind, too long or unknown has the answer that stands in the file, whole.
// Read what -update writes there.
func TestHTTPWhatIsWrongIsToldExactly(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	var got []string
	for _, r := range append(wrongHeaders(box, w.auth), wrongFields(box, w.auth)...) {
		line := fmt.Sprintf("%s %s: %s -> %s", r.method, strings.ReplaceAll(r.path, box, "BOX"), r.name, w.told(r, box))
		got = append(got, repeated.ReplaceAllString(line, "…"))
	}
	const file = "testdata/refusals.txt"
	slices.Sort(got)
	text := strings.Join(got, "\n") + "\n"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	wanted := strings.Split(strings.TrimSuffix(string(want), "\n"), "\n")
	require.Len(t, got, len(wanted))
	for i := range got {
		require.Equal(t, wanted[i], got[i])
	}
	require.NotContains(t, text, strings.TrimPrefix(w.auth, "ApiKey "))
}
