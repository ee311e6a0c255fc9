package cli

import (
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// FuzzMemory: a size is refused as a mistake of the user, or it is exactly what was written; and what we write is read as the same.
func FuzzMemory(f *testing.F) {
	for _, s := range []string{"", "512Mi", "1.5Gi", "2G", "1024", "5 bananas", "-1", "9e99", "1.0000001Ki", "99999999999999999999", "Ki", "1.2.3", "0x1", "1iKi"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := memory(s)
		if err != nil {
			var wrong usageError
			require.ErrorAs(t, err, &wrong)
		} else {
			number := strings.TrimRight(s, "kKMGTi")
			exact, ok := new(big.Rat).SetString(number)
			require.True(t, ok)
			exact.Mul(exact, new(big.Rat).SetInt64(units[s[len(number):]]))
			require.Zero(t, exact.Cmp(new(big.Rat).SetInt(new(big.Int).SetUint64(n))), "%q is not %d", s, n)
		}
		if milli, err := cpu(s); err == nil {
			again, err := cpu(strconv.FormatUint(uint64(milli), 10) + "m")
			require.NoError(t, err)
			require.Equal(t, milli, again)
		}
		if err == nil && n < 1<<40 {
			again, err := memory(quantity(n))
			require.NoError(t, err)
			require.Equal(t, n, again)
		}
	})
}

// FuzzCommandLine: any command line is understood or refused with a reason; completing it gives words and no more.
func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{
		"", "ls --all", "exec x -- a b", "create --cpu 1 --memory 2Gi --env A=b", "dlq redrive --all --older-than 1h", "dlq drop 1 2 --yes", "usage ls --limit -1", "--", "-o", "ls -o json --timeout 9e9h",
		"dlq ls --after 18446744073709551616", "cp a:b c", "replay exec --last", "help dlq redrive", "up --state x", "ls --timeout 1h1", "create --max-runtime -1s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		if len(args) > 16 {
			return
		}
		e := Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Signals: func() (<-chan os.Signal, func()) { return nil, func() {} }}
		func() {
			defer func() {
				if p := recover(); p != nil {
					_, help := p.(exited)
					require.True(t, help, "%v", p)
				}
			}()
			k, err := parser(&Root{}, &e)
			require.NoError(t, err)
			if _, err = k.Parse(args); err != nil {
				require.NotEmpty(t, err.Error())
				require.Equal(t, ExitUsage, describe(err).Exit, "%v", err)
			}
		}()
		_ = wantsJSON(args)
	})
}

// FuzzClean: text from a server has nothing that a terminal obeys, and is no longer than before.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "plain", "a\x1b[2Jb", "\u202e", "\xff\xfe", "é\u0085", "\u2066x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := render.Clean(s)
		for _, r := range c {
			require.False(t, unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r), "%q", c)
		}
		require.LessOrEqual(t, len(c), len(s))
		require.Equal(t, c, render.Clean(c))
	})
}
