package content

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
)

// span is a part of a file.
type span struct{ from, length int64 }

// rangeOf reads a Range header against the size of a file. Without one that is understood it is the whole file, and partial is false: several
// ranges, other units and what is no range are passed over, as HTTP has it. ok is false where the range begins behind the end.
func rangeOf(header string, size int64) (s span, partial, ok bool) {
	whole := span{0, size}
	unit, set, found := strings.Cut(header, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(unit), "bytes") || strings.Contains(set, ",") {
		return whole, false, true
	}
	first, last, found := strings.Cut(strings.TrimSpace(set), "-")
	from, fromOK := digits(first)
	to, toOK := digits(last)
	switch {
	case !found || first == "" && last == "" || first != "" && !fromOK || last != "" && !toOK || first != "" && last != "" && to < from:
		return whole, false, true
	case first == "" && to == 0:
		return span{}, true, false
	case first == "":
		n := min(to, size)
		return span{size - n, n}, true, size > 0
	case from >= size:
		return span{}, true, false
	case last == "" || to >= size:
		return span{from, size - from}, true, true
	default:
		return span{from, to - from + 1}, true, true
	}
}

// digits reads a number of digits only; one that is over every size is the largest.
func digits(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return n, true
}

// etag is the tag of a version of a file: nothing of the host can be read from it. One that is unsettled is weak: it cannot promise that the
// next change shows.
func etag(sandbox, path, version string, unsettled bool) string {
	if version == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(sandbox + "\x00" + path + "\x00" + version))
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	if unsettled {
		return "W/" + tag
	}
	return tag
}

// matches reports whether a list of tags (If-None-Match) has one, compared weakly.
func matches(list, tag string) bool {
	if tag == "" {
		return false
	}
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		if one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
			return true
		}
	}
	return false
}

// digestOf reads the sha-256 of a Content-Digest or Repr-Digest header; nil where it has none. ok is false where it has one that is none.
func digestOf(header string) (sum []byte, ok bool) {
	for member := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(member), "=")
		if !strings.EqualFold(strings.TrimSpace(name), "sha-256") {
			continue
		}
		value, _, _ = strings.Cut(value, ";")
		value = strings.TrimSpace(value)
		text, colon := strings.CutSuffix(strings.TrimPrefix(value, ":"), ":")
		sum, err := base64.StdEncoding.DecodeString(text)
		if !colon || !strings.HasPrefix(value, ":") || err != nil || len(sum) != sha256.Size {
			return nil, false
		}
		return sum, true
	}
	return nil, true
}

// DigestHeader is a SHA-256 as Content-Digest and Repr-Digest have it.
func DigestHeader(sum []byte) string {
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum) + ":"
}

// wantsDigest reports whether Want-Repr-Digest asks for a sha-256.
func wantsDigest(h http.Header) bool {
	for member := range strings.SplitSeq(h.Get("Want-Repr-Digest"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(member), "=")
		if strings.EqualFold(strings.TrimSpace(name), "sha-256") {
			return strings.TrimSpace(weight) != "0"
		}
	}
	return false
}

// Digests are the digests that come with a body, by the header that they came in; all that is wrong with them goes into bad.
func Digests(h http.Header, bad map[string]string) map[string][]byte {
	all := map[string][]byte{}
	for _, name := range []string{"Content-Digest", "Repr-Digest"} {
		values := h[name]
		if len(values) == 0 {
			continue
		}
		sum, ok := digestOf(strings.Join(values, ","))
		if !ok {
			bad[strings.ToLower(name)] = "must be sha-256=:BASE64:"
		} else if sum != nil {
			all[name] = sum
		}
	}
	return all
}

// Differs names the header whose digest is not that of what came; empty where there is none.
func Differs(all map[string][]byte, sum []byte) string {
	for name, want := range all {
		if !bytes.Equal(want, sum) {
			return strings.ToLower(name)
		}
	}
	return ""
}
