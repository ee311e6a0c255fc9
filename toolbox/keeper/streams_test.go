package keeper_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

// descriptors and resident are how many files the process has open and how many KiB of memory it has.
func descriptors(t testing.TB, pid int) int {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	require.NoError(t, err)
	return len(entries)
}

func resident(t testing.TB, pid int) (kib int) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	require.Fail(t, "no VmRSS")
	return 0
}

// Ten thousand readers of a program that has ended and of one that runs, which stay to the end, leave in the middle, or leave while
// nothing comes: the keeper is as small behind them as before.
func TestTenThousandAttachesLeaveNothing(t *testing.T) {
	attaches := 10_000
	if testing.Short() {
		attaches = 1000
	}
	b := keepertest.Start(t)
	ended, quiet := keepertest.NewID(), keepertest.NewID()
	for id, script := range map[string]string{ended: "seq 1 3000", quiet: "echo begun; sleep 600"} {
		_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sh", "-c", script}})
		require.NoError(t, err)
	}
	want := len(b.Follow(t, ended, 0, 0).Stdout)
	attach := func(ctx context.Context, i int) error {
		id := ended
		if i%3 == 2 {
			id = quiet
		}
		s, err := b.Attach(ctx, &toolboxv1.Attach{ExecId: id})
		if err != nil {
			return err
		}
		defer s.Close()
		for got := 0; ; {
			e, err := s.Recv()
			got += len(e.GetData().GetData())
			switch {
			case err != nil:
				return err
			case i%3 > 0 && got > 0:
				return nil
			case e.GetEnd() != nil && got != want:
				return fmt.Errorf("%d bytes of %d", got, want)
			case e.GetEnd() != nil:
				return nil
			}
		}
	}
	run := func(n int) {
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := worker; i < n; i += 8 {
					if err := attach(t.Context(), i); err != nil {
						t.Errorf("attach %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(300)
	var fds int
	// A reader that left is noticed a moment later.
	require.Eventually(t, func() bool { last := fds; fds = descriptors(t, b.PID()); return fds == last }, 10*time.Second, 100*time.Millisecond)
	before := resident(t, b.PID())
	run(attaches)
	require.Eventually(t, func() bool { return descriptors(t, b.PID()) <= fds }, 10*time.Second, 20*time.Millisecond, "%d before", fds)
	after := resident(t, b.PID())
	t.Logf("%d descriptors, %d KiB resident, %d before", descriptors(t, b.PID()), after, before)
	require.Less(t, after, before+4<<10)
}

// A caller that was cut off in the middle of a flood and comes back finds everything: the program waits for it, and not for ever.
func TestAFloodWaitsForItsReaderToComeBack(t *testing.T) {
	b := keepertest.Start(t)
	const total = 40 << 20 // ten times what is kept
	id := keepertest.NewID()
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sh", "-c", "dd if=/dev/zero bs=65536 count=640 2>/dev/null"}})
	require.NoError(t, err)
	written := func() uint64 {
		l, err := b.List(t.Context(), &toolboxv1.List{})
		require.NoError(t, err)
		return l.Execs[0].StdoutBytes
	}
	at := uint64(0)
	for range 5 {
		s, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: id, StdoutOffset: at})
		require.NoError(t, err)
		for from := at; at < from+1<<20; {
			e, err := s.Recv()
			require.NoError(t, err)
			require.Nil(t, e.GetSkip(), "bytes are missing")
			require.Equal(t, at, e.GetData().GetOffset())
			at += uint64(len(e.GetData().GetData()))
		}
		s.Close()
		// It goes on as far as it may, and there it waits.
		last := uint64(0)
		require.Eventually(t, func() bool { before := last; last = written(); return last == before && last > at }, 4*time.Second, 50*time.Millisecond)
		require.Less(t, last, at+4<<20)
	}
	o := b.Follow(t, id, at, 0)
	require.Zero(t, o.Skipped)
	require.EqualValues(t, total, at+uint64(len(o.Stdout)))
	require.Zero(t, o.End.Stdout.DroppedBytes)

	// Nobody comes back.
	id = keepertest.NewID()
	_, err = b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sh", "-c", "dd if=/dev/zero bs=65536 count=640 2>/dev/null"}})
	require.NoError(t, err)
	s, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	s.Close()
	require.Eventually(t, func() bool {
		l, err := b.List(t.Context(), &toolboxv1.List{})
		require.NoError(t, err)
		for _, x := range l.Execs {
			if x.ExecId == id {
				return x.End != nil
			}
		}
		return false
	}, 60*time.Second, 50*time.Millisecond)
}
