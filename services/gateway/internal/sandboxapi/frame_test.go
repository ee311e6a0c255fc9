package sandboxapi

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzFrames: however a program's output is cut, text that server-sent events can hold arrives as it was written, base64 always does, and
// whole lines lose nothing but how lines end.
func FuzzFrames(f *testing.F) {
	for _, s := range []string{"", "a\nb\n", "a\r\n\rb", "\xff\xfe", "€\xe2\x82", "a\vb\u2028c", "no end", "\n\n\n", "event: exit\ndata: 0\n\n"} {
		f.Add(s, 1)
		f.Add(s, 3)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = max(1, n%64)
		got := map[framing][]string{}
		for _, how := range []framing{exactText, wholeLines, base64Data} {
			fr := newFramer(how)
			for rest := s; rest != ""; {
				part := min(n, len(rest))
				if data, ok := fr.take("stdout", []byte(rest[:part]), false); ok {
					got[how] = append(got[how], data)
				}
				rest = rest[part:]
			}
			if data, ok := fr.take("stdout", nil, true); ok {
				got[how] = append(got[how], data)
			}
		}
		text := strings.Join(got[exactText], "")
		require.NotContains(t, text, "\r")
		if want := newFramer(exactText).plain([]byte(s)); !strings.ContainsRune(want, '\uFFFD') {
			require.Equal(t, want, text)
			lines := newFramer(wholeLines).plain([]byte(s))
			require.Equal(t, strings.TrimSuffix(lines, "\n"), strings.Join(got[wholeLines], "\n"))
		}
		var raw []byte
		for _, data := range got[base64Data] {
			b, err := base64.StdEncoding.DecodeString(data)
			require.NoError(t, err)
			raw = append(raw, b...)
		}
		require.Equal(t, s, string(raw))
	})
}

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		fits          bool
	}{
		{"*", "a", true},
		{"*", "a/b", false},
		{"*.py", "x.py", true},
		{"**/*.py", "x.py", true},
		{"**/*.py", "a/b/x.py", true},
		{"a/**", "a/b/c", true},
		{"a/**", "b/c", false},
		{"a/**/c", "a/c", true},
		{"a/**/c", "a/b/b/c", true},
		{"a/**/c", "a/b/d", false},
		{"**", "a/b", true},
		{"?", "ab", false},
		{"[ab]", "b", true},
		{"**/**/**/**/**/x", "a/a/a/a/a/a/a/a/a/y", false},
	} {
		require.Equal(t, c.fits, matches(strings.Split(c.pattern, "/"), strings.Split(c.path, "/")), "%s %s", c.pattern, c.path)
	}
}

func TestMatchesAreReadWithAnyNameAndLine(t *testing.T) {
	said := "a:b\x00" + "3:x:y\n" + "/w/c\x00" + "10:\n" + "cut\x00" + "1"
	require.Equal(t, []match{{"a:b", 3, "x:y"}, {"/w/c", 10, ""}}, lines([]byte(said)))
	require.Equal(t, []match{}, lines(nil))
}

func TestOnlyTheNamedAPIsPathsAreTaken(t *testing.T) {
	for path, taken := range map[string]bool{
		"/health": true, "/api/v1/sandboxes": true, "/api/v1/sandboxes/x": true, "/api/v1/jobs/1": true, "/api/v1/poders": true, "/api/v1/tokens": true,
		"/api/v1/sandbox": false, "/api/v1/sandbox/create": false, "/api/v1/openapi.json": false, "/": false, "/metrics": false,
	} {
		require.Equal(t, taken, Takes(newRequest(t, "GET", path, "")), path)
	}
	require.False(t, Takes(newRequest(t, "GET", "/api/v1/sandboxes", "ApiKey k")), "the controller API lists there too")
	require.True(t, Takes(newRequest(t, "GET", "/api/v1/sandboxes", "Bearer k")))
	require.True(t, Takes(newRequest(t, "POST", "/api/v1/sandboxes", "ApiKey k")))
}
