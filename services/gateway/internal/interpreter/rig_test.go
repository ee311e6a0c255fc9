package interpreter

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/transcript"
)

// kernel is the program of a context on this host, as an Exec.
type kernel struct {
	t     *testing.T
	stdin io.Writer
	asker Asker

	mu     sync.Mutex
	chunks []transcript.Chunk
	ended  bool
	woken  chan struct{}

	// in guards what was written: so many bytes were taken, and the next lose writes come second.
	in    sync.Mutex
	taken uint64
	lose  int
}

func newKernel(t *testing.T) *kernel {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: runs python3 of this host")
	}
	python, err := exec.LookPath(Program)
	require.NoError(t, err, "these tests run the program of contexts with this host's python3")
	k := &kernel{t: t, woken: make(chan struct{})}
	cmd := exec.Command(python, Arguments("test")...) //nolint:gosec // the test's own
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = 10 * time.Second
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	k.stdin = stdin
	cmd.Stdout = k
	require.NoError(t, cmd.Start())
	_, err = stdin.Write(Source())
	require.NoError(t, err)
	var over sync.WaitGroup
	over.Go(func() {
		_ = cmd.Wait()
		k.set(func() { k.ended = true })
	})
	t.Cleanup(func() {
		_ = stdin.Close()
		over.Wait()
		require.Equal(t, 0, cmd.ProcessState.ExitCode(), "the end of its input is its end")
	})
	return k
}

func (k *kernel) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.woken)
	k.woken = make(chan struct{})
}

// Write takes the program's output as a chunk; as an Exec it is far.
func (k *kernel) Write(data []byte) (int, error) {
	k.set(func() {
		k.chunks = append(k.chunks, transcript.Chunk{Number: uint64(len(k.chunks) + 1), Stream: transcript.Stdout, Data: append([]byte(nil), data...)})
	})
	return len(data), nil
}

// far is a kernel as an Exec.
type far struct{ *kernel }

func (f far) Write(_ context.Context, offset uint64, data []byte) (uint64, error) {
	f.in.Lock()
	defer f.in.Unlock()
	if len(data) > 0 && f.lose > 0 {
		// Somebody else has written at the same place.
		f.lose--
		n, err := f.stdin.Write([]byte("\n00000000 {\"id\":\"x"))
		f.taken += uint64(n)
		if err != nil {
			return f.taken, err
		}
	}
	data = data[min(f.taken-offset, uint64(len(data))):]
	n, err := f.stdin.Write(data[:min(len(data), 10_000)])
	f.taken += uint64(n)
	return f.taken, err
}

func (f far) Last(context.Context) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.chunks)), nil
}

func (f far) Follow(ctx context.Context, after uint64, each func(*transcript.Chunk) error) error {
	for {
		f.mu.Lock()
		fresh, ended, woken := f.chunks[after:], f.ended, f.woken
		f.mu.Unlock()
		for _, c := range fresh {
			if err := each(&c); err != nil {
				return err
			}
			after++
		}
		if ended && len(fresh) == 0 {
			return nil
		}
		if len(fresh) > 0 {
			continue
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// room is memory without a bound that counts.
type room struct {
	mu   sync.Mutex
	held int
	most int
}

func (r *room) Take(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most > 0 && r.held+n > r.most {
		return false
	}
	r.held += n
	return true
}

func (r *room) Give(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held -= n
}

func (k *kernel) ask(r Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	r.ID = ids.New()
	memory := &room{}
	a, release, err := k.asker.Ask(ctx, "id", far{k}, r, memory)
	release()
	if memory.held != 0 {
		err = errors.Join(err, errors.New("memory is still held"))
	}
	return a, err
}

// run runs a cell that may take a second.
func (k *kernel) run(code string) Answer {
	k.t.Helper()
	return k.within(code, 1)
}

func (k *kernel) within(code string, seconds float64) Answer {
	k.t.Helper()
	a, err := k.ask(Request{Do: Run, Code: code, Timeout: seconds})
	require.NoError(k.t, err)
	return a
}

// good runs a cell that must not fail.
func (k *kernel) good(code string) Answer {
	k.t.Helper()
	a := k.within(code, 30)
	require.Nil(k.t, a.Error, "%s", code)
	return a
}

// value is the text of the last expression of a cell.
func (k *kernel) value(code string) string {
	k.t.Helper()
	a := k.good(code)
	require.NotNil(k.t, a.Text, "%s", code)
	return *a.Text
}
