package skew_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/skew"
)

// askedEnv makes this program answer each line of its standard input with its wall clock and with how long it has run by its monotonic
// one, in nanoseconds.
const askedEnv = "SANDTRAIL_TEST_CLOCK"

func TestMain(m *testing.M) {
	if url := os.Getenv(workEnv); url != "" {
		if err := work(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(askedEnv) == "" {
		os.Exit(m.Run())
	}
	began := time.Now()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if _, err := fmt.Fprintln(os.Stdout, time.Now().UnixNano(), time.Since(began).Nanoseconds()); err != nil {
			os.Exit(1)
		}
	}
}

// offsets, of each sign and up to years.
var offsets = []time.Duration{0, time.Hour, -72*time.Hour - time.Second, 400 * 24 * time.Hour, -time.Second, 0}

func TestAProgramsWallClockJumpsAndItsMonotonicOneGoesOn(t *testing.T) {
	var c skew.Clock
	ask := start(t, &c)
	other := start(t, new(skew.Clock))
	var before time.Duration
	for _, off := range offsets {
		require.NoError(t, c.Set(off))
		from := time.Now()
		wall, since := ask()
		require.WithinRange(t, wall.Add(-off), from.Round(0), time.Now().Round(0), "off by %s", off)
		require.Greater(t, since, before)
		require.Less(t, since, time.Hour, "the monotonic clock does not jump")
		before = since
		wall, _ = other()
		require.WithinRange(t, wall, from.Round(0), time.Now().Round(0), "another program's clock is its own")
	}
}

func TestTheNextProgramStartsWithTheClockThatWasSet(t *testing.T) {
	var c skew.Clock
	require.NoError(t, c.Set(48*time.Hour), "without a program")
	for range 2 {
		from := time.Now()
		wall, _ := start(t, &c)()
		require.WithinRange(t, wall.Add(-48*time.Hour), from.Round(0), time.Now().Round(0))
	}
	gone := exec.Command("/bin/true")
	require.NoError(t, c.Start(gone))
	require.NoError(t, gone.Wait())
	require.NoError(t, c.Set(time.Hour), "its program has ended")
	require.Error(t, c.Start(exec.Command("/nonexistent")))
}

// start runs this program with a clock, and asks it.
func start(t *testing.T, c *skew.Clock) (ask func() (time.Time, time.Duration)) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), askedEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start(cmd))
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	answers := bufio.NewReader(stdout)
	return func() (time.Time, time.Duration) {
		_, err := fmt.Fprintln(stdin)
		require.NoError(t, err)
		var wall, since int64
		_, err = fmt.Fscan(answers, &wall, &since)
		require.NoError(t, err)
		return time.Unix(0, wall), time.Duration(since)
	}
}
