package diagnosis

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxText bounds what is quoted of the cluster's own words, in bytes.
const MaxText = 400

// What the cluster writes reaches the sandbox's tenant. Names of images, classes and policies help; credentials in URLs, addresses
// inside of the cluster and paths on its nodes help nobody who may not see them.
var (
	rpcPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)
	userInfo  = regexp.MustCompile(`(\w+://)[^\s/@"']*@`)
	urlQuery  = regexp.MustCompile(`(\w+://[^\s?"'<>]*)\?[^\s"'<>]*`)
	secrets   = regexp.MustCompile(`(?i)\b(token|password|passwd|secret|signature|credential|api[-_]?key|bearer|basic)([=:]\s*|\s+(?:eyJ))[^\s"',;)]+`)
	ipv4      = regexp.MustCompile(`(^|[\s"'(\[{/=,>@])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b`)
	ipv6      = regexp.MustCompile(`\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\](?::\d{1,5})?`)
	nodePath  = regexp.MustCompile(`/(?:var/lib|run|var/run|proc|sys|etc)/[^\s"',:;)]*`)
	podRef    = regexp.MustCompile(`\s*\(pod: [^()]*(?:\([^()]*\)[^()]*)*\)`)
	uid       = regexp.MustCompile(`\(?\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b\)?`)
)

// Clean makes the cluster's words fit to be shown: one line of at most MaxText bytes, without credentials, addresses, and paths on
// nodes. Clean of what is clean changes nothing.
func Clean(s string) string {
	// Far more than is shown, and little enough that a message of megabytes costs nothing.
	if len(s) > 16*MaxText {
		s = s[:16*MaxText]
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	for {
		before := s
		s = rpcPrefix.ReplaceAllString(s, "")
		s = userInfo.ReplaceAllString(s, "$1")
		s = urlQuery.ReplaceAllString(s, "$1")
		s = secrets.ReplaceAllString(s, "$1 …")
		s = podRef.ReplaceAllString(s, "")
		s = uid.ReplaceAllString(s, "…")
		s = ipv6.ReplaceAllString(s, "…")
		s = ipv4.ReplaceAllString(s, "$1…")
		s = nodePath.ReplaceAllString(s, "…")
		s = strings.Join(strings.Fields(s), " ")
		s = strings.TrimRight(s, ".,;: ")
		if s = cut(s); s == before {
			return s
		}
	}
}

// cut shortens a text to MaxText bytes, at a rune.
func cut(s string) string {
	if len(s) <= MaxText {
		return s
	}
	const mark = "…"
	s = s[:MaxText-len(mark)]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return strings.TrimRight(s, " …") + mark
}
