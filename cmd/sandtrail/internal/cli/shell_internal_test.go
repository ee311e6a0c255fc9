package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Modes that a program has switched and not switched back are, however the output is cut.
func TestModesAreSwitchedBack(t *testing.T) {
	for name, c := range map[string]struct{ shown, back string }{
		"nothing":      {"plain \x1b[31mred\x1b[0m", ""},
		"editor":       {"\x1b[?1049h\x1b[?25l\x1b[?1000;1006hx", "\x1b[?25h\x1b[?1000l\x1b[?1006l\x1b[?1049l"},
		"switched off": {"\x1b[?1049h\x1b[?2004hx\x1b[?2004l\x1b[?1049l", ""},
		"unknown":      {"\x1b[?9999h\x1b[4h\x1b]0;title ?25l\x07", ""},
		"twice":        {"\x1b[?25l\x1b[?25l\x1b[?25h", ""},
		"cut short":    {"\x1b[?25l\x1b[?104", "\x1b[?25h"},
		"very long":    {"\x1b[?" + strings.Repeat("1", 1000) + "\x1b[?25l", "\x1b[?25h"},
	} {
		for _, step := range []int{1, 2, 3, 7, 10_000} {
			m := &modes{}
			for rest := c.shown; rest != ""; {
				n := min(step, len(rest))
				m.see([]byte(rest[:n]))
				rest = rest[n:]
			}
			back, switched := m.back()
			require.Equal(t, c.back+"\x1b[0m", back, "%s by %d", name, step)
			require.Equal(t, c.back != "", switched)
			require.LessOrEqual(t, len(m.part), sequenceMost)
		}
	}
}

// What the server has not got of what was sent is sent again, once, from where it is.
func TestTypedIsSentAgainFromWhereTheServerIs(t *testing.T) {
	k := newTyped()
	require.True(t, k.add([]byte("abcdef")))
	require.Equal(t, "abcd", string(k.next(4)))
	k.gone(4)
	require.Equal(t, "ef", string(k.next(4)))
	k.from(2)
	require.Equal(t, "cdef", string(k.next(10)))
	k.gone(4)
	require.Empty(t, k.next(10))
	k.from(6)
	require.Empty(t, k.next(10))
	// Somebody else typed too: what waits is sent behind that.
	require.True(t, k.add([]byte("gh")))
	k.from(50)
	require.Equal(t, "gh", string(k.next(10)))
	k.gone(2)
	// So much is kept as a connection may lose, and so much waits as there is room for.
	require.True(t, k.add(make([]byte, waitingBytes)))
	require.False(t, k.add([]byte("x")))
	k.gone(waitingBytes)
	require.True(t, k.add([]byte("x")))
	require.LessOrEqual(t, len(k.data), keptBytes+1)
	k.from(52 + waitingBytes - 10)
	require.Len(t, k.next(100), 11)
}

// A panic beside the main goroutine leaves the terminal as it was.
func TestAPanicGivesTheTerminalBack(t *testing.T) {
	back := 0
	v := &visit{restore: func() { back++ }}
	require.PanicsWithValue(t, "boom", func() { v.guarded(func() { panic("boom") }) })
	require.Equal(t, 1, back)
	v.guarded(func() {})
	require.Equal(t, 1, back)
}
