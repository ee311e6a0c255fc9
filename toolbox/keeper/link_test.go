package keeper

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/guest"
)

// pretend is a link to an init that answers each line with what answer makes of it.
func pretend(t *testing.T, answer func(line string, out io.Writer)) *link {
	t.Helper()
	l, theirs, err := newLink()
	require.NoError(t, err)
	t.Cleanup(func() { closeAll(theirs[:]) })
	t.Cleanup(l.close)
	go func() {
		lines := bufio.NewReader(theirs[0])
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			answer(line, theirs[1])
		}
	}()
	return l
}

// Whatever comes from inside in the place of init's answers is an answer or an error, at once, and holds no memory.
func TestNoiseFromInitIsAnError(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's noise
	for range 300 {
		noise := make([]byte, 1+random.IntN(2000))
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		noise[0] = 0xff // no number
		noise = append(noise, '\n')
		l := pretend(t, func(_ string, out io.Writer) { _, _ = out.Write(noise) })
		_, err := l.kill(1, syscall.SIGKILL)
		require.Error(t, err)
		l.close()
	}
	for _, answer := range []string{"", "error", "error: no such group", "1e9", "0x10", "99999999999999999999999", "1 2", guest.Ready, strings.Repeat("1", 4000)} {
		l := pretend(t, func(_ string, out io.Writer) { _, _ = io.WriteString(out, answer+"\n") })
		_, err := l.kill(1, syscall.SIGKILL)
		require.Error(t, err, answer)
		l.close()
	}
	// A stream of which no line ends.
	l := pretend(t, func(_ string, out io.Writer) {
		for {
			if _, err := out.Write(bytes.Repeat([]byte("9"), 64<<10)); err != nil {
				return
			}
		}
	})
	_, err := l.kill(1, syscall.SIGKILL)
	require.ErrorIs(t, err, bufio.ErrBufferFull)
}

// An init that was never there, or says something else first, is noticed.
func TestInitMustSayThatItIsReady(t *testing.T) {
	for name, says := range map[string]string{"another word": "steady\n", "noise": "\x00\xff\n", "nothing": "", "no end": strings.Repeat("r", 1000)} {
		l, theirs, err := newLink()
		require.NoError(t, err)
		_, err = io.WriteString(theirs[1], says)
		require.NoError(t, err)
		require.Error(t, l.ready(50*time.Millisecond), name)
		closeAll(theirs[:])
		l.close()
	}
	l, theirs, err := newLink()
	require.NoError(t, err)
	defer l.close()
	require.NoError(t, theirs[1].Close())
	require.ErrorIs(t, l.ready(time.Minute), io.EOF)
	for _, f := range []*os.File{theirs[0], theirs[2]} {
		require.NoError(t, f.Close())
	}
}
