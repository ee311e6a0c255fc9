package sentry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseProc(t *testing.T) {
	const stat = ") S 1 2 2 0 -1 0 0 0 0 0 3 4 50 600 20 0 1 0 7\n"
	const status = "\nState:\tS\nGroups:\t1000 77 \nSeccomp:\t0\n"
	groups := []uint32{76, 77}
	used, group := parseProc([]byte("12 (sh"+stat+"Name:\tsh"+status), groups)
	require.Equal(t, 6570*time.Millisecond, used)
	require.EqualValues(t, 77, group)
	_, group = parseProc([]byte("12 (sh"+stat+"Name:\tsh"+status), []uint32{1})
	require.Zero(t, group)

	// A program is free to take a name that looks like something else.
	for _, name := range []string{"a) S 9 9", "\nGroups:\t76\n", ") 9 (\n"} {
		used, group = parseProc([]byte("12 ("+name+stat+"Name:\t"+name+status), groups)
		require.EqualValues(t, 77, group, "%q", name)
		require.Equal(t, 6570*time.Millisecond, used, "%q", name)
	}
	for _, broken := range []string{"", "(", "1 (sh)", "1 (sh) S 1", ")", "1 (sh" + stat, "1 (sh) S 1 2 2 0 -1 0 0 0 0 0 x 4 50 600\n" + status} {
		_, group = parseProc([]byte(broken), groups)
		require.Zero(t, group, "%q", broken)
	}
}
