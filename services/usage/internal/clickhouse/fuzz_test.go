package clickhouse

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// FuzzCursor: a cursor is refused, or it is one of a page; and no text of a filter is spelled into the query.
func FuzzCursor(f *testing.F) {
	f.Add(cursor{time.Unix(0, 7), uuid.Nil}.String(), "acme")
	f.Add("", "'; DROP TABLE agents.usage_events; --")
	f.Add("MC4", "\xff")
	f.Fuzz(func(t *testing.T, s, word string) {
		if c, err := parseCursor(s); err == nil {
			again, err := parseCursor(c.String())
			require.NoError(t, err)
			require.True(t, c.at.Equal(again.at))
			require.Equal(t, c.id, again.id)
		}
		where, args, err := Filter{Tenant: word, Session: word, Sandbox: s, Exec: word, Cursor: s}.conditions()
		if err != nil {
			return
		}
		require.Len(t, args, strings.Count(where, "?"))
		require.Less(t, len(where), 400)
		if len(word) > 8 {
			require.NotContains(t, where, word)
		}
	})
}

// FuzzAddress: an address is taken or refused, and what is said of one that is refused quotes nothing of it.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{
		"clickhouse://user:hunter2@host:9000/db?dial_timeout=1s", "http://h", "", "://", "clickhouse://h?compress=zstd&max_open_conns=x", "clickhouse://[::1]:9000", "tcp://%zz",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Open(s)
		if err == nil {
			require.NoError(t, c.Close())
			return
		}
		if len(s) > 24 {
			require.NotContains(t, err.Error(), s)
		}
	})
}
