package content

import (
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Kept reads what a client wants kept of a file beside its content: permission bits as the parameter mode, octal, and its time of modification
// as modified, RFC 3339 or seconds since 1970; or both as the headers of a part of a form, which come first. What is wrong goes into bad. Zero
// values stand for what is not given.
func Kept(query url.Values, part textproto.MIMEHeader, bad map[string]string) (mode uint32, modified time.Time) {
	name, text := given(query, part, "mode", HeaderMode)
	if text != "" {
		n, err := strconv.ParseUint(text, 8, 9)
		if err != nil || n == 0 {
			bad[name] = "must be octal such as 0644"
		}
		mode = uint32(n)
	}
	if name, text = given(query, part, "modified", HeaderModified); text != "" {
		var ok bool
		if modified, ok = moment(text); !ok {
			bad[name] = "must be a time such as 2026-11-30T08:00:00Z, or seconds since 1970"
		}
	}
	return mode, modified
}

func given(query url.Values, part textproto.MIMEHeader, param, header string) (name, text string) {
	if text = part.Get(header); text != "" {
		return strings.ToLower(header), text
	}
	return param, query.Get(param)
}

// moment reads a time that file systems can hold.
func moment(text string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		seconds, fraction, _ := strings.Cut(text, ".")
		n, bad := strconv.ParseInt(seconds, 10, 64)
		nanos, worse := strconv.ParseUint((fraction + "000000000")[:9], 10, 32)
		if bad != nil || worse != nil || n < 0 || n > 1<<40 {
			return time.Time{}, false
		}
		at = time.Unix(n, int64(nanos)) //nolint:gosec // nine digits
	}
	return at, at.Year() >= 1902 && at.Year() < 2400
}
