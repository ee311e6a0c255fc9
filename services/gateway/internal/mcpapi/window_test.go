package mcpapi

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// bytesOf are the bytes that an output shows: its beginning and its end.
func bytesOf(t testing.TB, o output) (head, tail []byte) {
	t.Helper()
	if o.Encoding == utf8Text {
		return []byte(o.Text), []byte(o.Tail)
	}
	head, err := base64.StdEncoding.DecodeString(o.Text)
	require.NoError(t, err)
	tail, err = base64.StdEncoding.DecodeString(o.Tail)
	require.NoError(t, err)
	return head, tail
}

func TestWindow(t *testing.T) {
	for _, c := range []struct {
		name       string
		from       uint64
		feed       func(w *window)
		total      uint64
		text, tail string
		omitted    uint64
		note       string
	}{
		{"whole", 0, func(w *window) { w.add(0, []byte("abc")); w.add(3, []byte("de")) }, 5, "abcde", "", 0, ""},
		{"fills both", 0, func(w *window) { w.add(0, []byte("abcdefgh")) }, 8, "abcdefgh", "", 0, ""},
		{"over", 0, func(w *window) { w.add(0, []byte("abcdefghijkl")) }, 12, "abcd", "ijkl", 4, "stdout_offset=4"},
		{"in drops", 0, func(w *window) {
			for i, c := range "abcdefghijkl" {
				w.add(uint64(i), []byte(string(c)))
			}
		}, 12, "abcd", "ijkl", 4, "stdout_offset=4"},
		{"from an offset", 2, func(w *window) { w.add(0, []byte("abc")); w.add(3, []byte("d")) }, 4, "cd", "", 0, ""},
		{"seen twice", 0, func(w *window) { w.add(0, []byte("abcdef")); w.add(4, []byte("efgh")) }, 8, "abcdefgh", "", 0, ""},
		{"the end alone behind the beginning", 0, func(w *window) { w.add(0, []byte("abcde")); w.add(20, []byte("wxyz")) }, 24, "abcd", "wxyz", 16, "stdout_offset=4"},
		{"a gap", 0, func(w *window) { w.add(0, []byte("ab")); w.gap(2, 10); w.add(10, []byte("cd")) }, 12, "ab", "cd", 8, "8 of them were not recorded"},
		{"not read to its end", 0, func(w *window) { w.add(0, []byte("abcd")) }, 9, "abcd", "", 5, "stdout_offset=4"},
		{"behind the end", 9, func(w *window) { w.add(0, []byte("abcd")) }, 4, "", "", 0, ""},
		{"characters", 0, func(w *window) { w.add(0, []byte("abcüdefghiüxyz")) }, 16, "abc", "xyz", 10, "stdout_offset=3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := window{name: "stdout", from: c.from, headMost: 4, tailMost: 4}
			c.feed(&w)
			o := w.shown(c.total)
			require.Equal(t, c.text, o.Text)
			require.Equal(t, c.tail, o.Tail)
			require.Equal(t, c.omitted, o.Omitted)
			require.Contains(t, o.Note, c.note)
			require.Equal(t, c.note == "", o.Note == "")
		})
	}
}

// FuzzWindow: however output is cut into pieces, its beginning and its end are shown as they are, and what lies between is counted.
func FuzzWindow(f *testing.F) {
	f.Add([]byte("some text with é and more of it"), uint8(3), uint8(4), uint8(2))
	f.Add([]byte{0xff, 0xc3, 0x28}, uint8(1), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, step, most, from uint8) {
		w := window{name: "stdout", from: uint64(from), headMost: int(most), tailMost: int(most)}
		for at := 0; at < len(data); {
			n := min(int(step)+1, len(data)-at)
			w.add(uint64(at), data[at:at+n])
			at += n
		}
		o := w.shown(uint64(len(data)))
		head, tail := bytesOf(t, o)
		wanted := data[min(int(from), len(data)):]
		if !bytes.HasPrefix(wanted, head) || !bytes.HasSuffix(wanted, tail) {
			t.Fatalf("%q shows %q … %q", wanted, head, tail)
		}
		if uint64(len(head)+len(tail))+o.Omitted != uint64(len(wanted)) {
			t.Fatalf("%d + %d + %d of %d", len(head), len(tail), o.Omitted, len(wanted))
		}
		if utf8.Valid(data) && int(from) == 0 && o.Encoding != utf8Text {
			t.Fatalf("text became %s", o.Encoding)
		}
		if o.Omitted == 0 && !bytes.Equal(head, wanted) {
			t.Fatalf("%q is %q", wanted, head)
		}
	})
}

// FuzzCutRune: what is cut off is the beginning of a character and less than one.
func FuzzCutRune(f *testing.F) {
	for _, s := range []string{"", "a", "é", "\xc3", "a\xe2\x82", "\xff", "\x80\x80\x80\x80"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n := cutRune(text)
		if n < 0 || n >= utf8.UTFMax || n > len(text) {
			t.Fatalf("%d of %q", n, text)
		}
		if utf8.Valid(text) && n != 0 {
			t.Fatalf("%d of whole text %q", n, text)
		}
		whole := strings.ToValidUTF8(string(text), "")
		if n > 0 && !strings.HasPrefix(whole, strings.ToValidUTF8(string(text[:len(text)-n]), "")) {
			t.Fatalf("%q", text)
		}
	})
}
