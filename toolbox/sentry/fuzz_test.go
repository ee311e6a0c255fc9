package sentry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseProc: a program chooses its name; whatever it is, it is never counted for a group that it does not have.
func FuzzParseProc(f *testing.F) {
	const stat = " S 1 2 2 0 -1 0 0 0 0 0 3 4 50 600 20 0 1 0 7\n"
	f.Add([]byte("7 (sh)" + stat + "Name:\tsh\nGroups:\t77 78\n"))
	f.Add([]byte("7 () S ) 1" + stat + "Groups:\t\n"))
	f.Add([]byte("7 (a\nGroups:\t77)" + stat + "Groups:\t1\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		used, group := parseProc(b, []uint32{77, 78})
		require.Contains(t, []uint32{0, 77, 78}, group)
		if group == 0 {
			require.Zero(t, used)
		}
	})
}
