package sentry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program is free to take a name that looks like something else, of up to 15 bytes; neither its own membership nor another's
// depends on it.
func TestMembersDoNotDependOnNames(t *testing.T) {
	const line = "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n"
	status := func(name, state, groups string) string {
		return fmt.Sprintf("Name:\t%s\nState:\t%s\nTgid:\t7\nGroups:\t%s \nSeccomp:\t0\n", name, state, groups)
	}
	list := []guestProcess{{PID: 1}, {PID: 5}, {PID: 6}, {PID: 7}, {PID: 8}}
	member := func(g uint32) bool { return g == 77 }
	for _, name := range []string{"sh", "a\nState:\tZ", "\nGroups:\t76", "\nGroups:\t77", line[:maxComm], "\n" + line[:maxComm-1], ""} {
		text := line + status("init", "S (sleeping)", "") + line + status(name, "R (running)", "1000 77") + line +
			status(name, "Z (zombie)", "77") + line + status(name, "R (running)", "770 7") + line + status(name, "T (stopped)", "77") + line
		pids, err := parseStatuses([]byte(text), list, member)
		require.NoError(t, err, "%q", name)
		require.Equal(t, []int32{5, 8}, pids, "%q", name)
	}
	for name, broken := range map[string]string{
		"nothing":           "",
		"one too few":       strings.Repeat(line, 4),
		"one too many":      strings.Repeat(line, 8),
		"a divider as long": "0123456789abcde\n",
		"no end of a line":  "Linux version 4.19.0-gvisor",
	} {
		_, err := parseStatuses([]byte(broken), list, member)
		require.ErrorIs(t, err, errStatuses, name)
	}
}
