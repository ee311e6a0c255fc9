package ids_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// FuzzValid: an id that is valid is written in one way only, and stands in a subject.
func FuzzValid(f *testing.F) {
	for _, s := range []string{
		"", ids.New(), strings.ToUpper(ids.New()), "{" + ids.New() + "}", "urn:uuid:" + ids.New(), strings.ReplaceAll(ids.New(), "-", ""), "00000000-0000-0000-0000-000000000000",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		require.LessOrEqual(t, len(ids.Short(s)), max(8, len(s)))
		if ids.Valid(s) {
			require.Len(t, s, 36)
			require.Equal(t, strings.ToLower(s), s)
			require.True(t, subject.ValidToken(s))
		}
	})
}

// FuzzDerive: what is derived is valid, the same each time, and another one where a part ends elsewhere.
func FuzzDerive(f *testing.F) {
	f.Add("a", "bc")
	f.Add("", "")
	f.Add("1:a", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		id := ids.Derive(a, b)
		require.True(t, ids.Valid(id))
		require.Equal(t, id, ids.Derive(a, b))
		require.NotEqual(t, id, ids.Derive(a+b))
		if b != "" {
			require.NotEqual(t, id, ids.Derive(a+b[:1], b[1:]))
		}
	})
}
