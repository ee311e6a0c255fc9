package content

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzRange: a range is one inside of the file, or behind its end, or none.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-0", "bytes=-1", "bytes=5-", "bytes=0-1,2-3", "bytes=99999999999999999999-", "bytes=--", "BYTES = 1 - 2", ""} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		s, partial, ok := rangeOf(header, size)
		switch {
		case !ok && !partial:
			t.Fatal("what is no range is no refusal")
		case ok && partial && (s.from < 0 || s.length < 1 || s.from+s.length > size):
			t.Fatalf("%q of %d is %d+%d", header, size, s.from, s.length)
		case ok && !partial && (s.from != 0 || s.length != size):
			t.Fatalf("%q of %d is not the whole", header, size)
		}
	})
}

// FuzzDigestHeader: a digest is read back as it is written, and what is none is refused.
func FuzzDigestHeader(f *testing.F) {
	for _, s := range []string{DigestHeader(make([]byte, 32)), "sha-256=:AA==:", "md5=:AA==:", "sha-256=x, sha-512=:y:", "SHA-256=::;q=1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		sum, ok := digestOf(header)
		if sum != nil && (!ok || len(sum) != 32) {
			t.Fatalf("%q is %x", header, sum)
		}
		if sum != nil {
			if again, ok := digestOf(DigestHeader(sum)); !ok || string(again) != string(sum) {
				t.Fatalf("%x became %x", sum, again)
			}
		}
		wantsDigest(http.Header{"Want-Repr-Digest": {header}})
		matches(header, `"x"`)
		if strings.Contains(header, "*") && !strings.ContainsAny(header, `", `) && header == "*" && !matches(header, `"x"`) {
			t.Fatal("* is every tag")
		}
	})
}
