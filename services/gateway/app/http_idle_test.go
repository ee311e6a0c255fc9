package app_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// holdEnv makes this test's program hold connections to an address instead: one process has not the descriptors for both ends.
	holdEnv = "SANDTRAIL_TEST_HOLD"
	held    = 10_000
)

// hold opens the connections, each with one answered request, and makes one more on each for every line that comes in. It says how many
// were answered each time.
func hold(addr string) {
	conns := make([]net.Conn, held)
	all := func(do func(i int) error) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		answered := 0
		for part := range 50 {
			wg.Go(func() {
				for i := part; i < held; i += 50 {
					if err := do(i); err == nil {
						mu.Lock()
						answered++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		fmt.Fprintln(os.Stdout, answered)
	}
	ask := func(i int) error {
		if _, err := io.WriteString(conns[i], "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReaderSize(conns[i], 1<<10), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return errors.Join(err, res.Body.Close())
	}
	all(func(i int) (err error) {
		if conns[i], err = net.Dial("tcp", addr); err != nil {
			return err
		}
		return ask(i)
	})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		all(ask)
	}
}

// held memory of this process, in bytes, without what nobody needs any more.
func heldMemory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// Ten thousand connections that idle cost little each, no more with every request on them, keep nobody out, and leave nothing behind.
func TestHTTPTenThousandIdleConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: opens 10,000 connections")
	}
	w := newWeb(t)
	before, routines := heldMemory(), runtime.NumGoroutine()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), holdEnv+"="+w.app.HTTP())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	answered := func() uint64 {
		require.True(t, lines.Scan(), "%v", lines.Err())
		require.Equal(t, fmt.Sprint(held), strings.TrimSpace(lines.Text()))
		w.send("GET", "/sandbox", "").is(t, 200)
		return heldMemory()
	}
	first := answered()
	require.Less(t, (first-before)/held, uint64(32<<10), "bytes for each")
	for range 4 {
		_, err := io.WriteString(in, "\n")
		require.NoError(t, err)
		require.Less(t, answered(), first+first/10)
	}
	t.Logf("%d bytes for each", (first-before)/held)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.Eventually(t, func() bool { return runtime.NumGoroutine() < routines+100 }, 3*patience, 100*time.Millisecond)
	require.Less(t, heldMemory(), before+(first-before)/5, "what Go keeps of 10,000 goroutines is a small part")
}
