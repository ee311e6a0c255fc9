package diagnosis

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWhatIsShownHoldsNoSecretAndNoAddress(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"", ""},
		{"0/3 nodes are available: 3 Insufficient cpu.", "0/3 nodes are available: 3 Insufficient cpu"},
		{`Head "https://bob:hunter2@r.example.com/v2/x?X-Amz-Signature=abc": EOF`, `Head "https://r.example.com/v2/x": EOF`},
		{"dial tcp 10.1.2.3:443: connect: connection refused", "dial tcp …: connect: connection refused"},
		{"dial tcp [fd00::1]:443: connect: connection refused", "dial tcp …: connect: connection refused"},
		{"rpc error: code = Unknown desc = rpc error: code = Internal desc = boom", "boom"},
		{"token=abc, password: def; secret \"agent-ca\" not found", "token …, password …; secret \"agent-ca\" not found"},
		{"line\nand\tline\x00\u202e.", "line and line"},
		{`runs as root (pod: "a_b(0a0a0a0a-0000-4000-8000-000000000000)", container: x)`, "runs as root"},
		{"mount /var/lib/kubelet/pods/x/volumes: exit status 32", "mount …: exit status 32"},
		{"image python:3.12.1.4 with sha256:0a0b", "image python:3.12.1.4 with sha256:0a0b"},
		{"broken \xff\xfe text", "broken text"},
	} {
		require.Equal(t, c.out, Clean(c.in), "%q", c.in)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a")
	f.Add(strings.Repeat("ä", MaxText))
	f.Add("https://a:b@c/?d bearer eyJabc 10.0.0.1 [::1]:5 (pod: (a))")
	f.Fuzz(func(t *testing.T, s string) {
		out := Clean(s)
		require.LessOrEqual(t, len(out), MaxText)
		require.True(t, utf8.ValidString(out))
		require.False(t, strings.ContainsFunc(out, unicode.IsControl))
		require.Equal(t, out, Clean(out))
	})
}
