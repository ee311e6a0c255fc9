package toolboxtest_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

func TestFakeKeepsTheContract(t *testing.T) {
	f := toolboxtest.NewFake(t, toolboxtest.NewID())
	toolboxtest.Run(t, f.Dial)
}

// A connection that is cut again and again, at any byte, loses nothing to a caller that attaches from where it got to.
func TestAttachThroughCutConnections(t *testing.T) {
	f := toolboxtest.NewFake(t, toolboxtest.NewID())
	c := client.New(f.Dial, "")
	id := toolboxtest.NewID()
	_, err := c.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"/bin/sh", "-c", "seq 1 100000"}})
	require.NoError(t, err)
	var got uint64
	var last []byte
	cuts := 0
	for ended := false; !ended; {
		f.CutAfter(int64(20_000 + 7919*cuts))
		s, err := c.Attach(t.Context(), &toolboxv1.Attach{ExecId: id, StdoutOffset: got})
		require.NoError(t, err)
		for {
			e, err := s.Recv()
			if errors.Is(err, io.EOF) {
				ended = true
				break
			}
			if err != nil {
				require.ErrorIs(t, err, client.ErrUnavailable)
				cuts++
				break
			}
			if d := e.GetData(); d != nil {
				require.Equal(t, got, d.Offset)
				got += uint64(len(d.Data))
				last = d.Data
			}
		}
		s.Close()
	}
	require.Greater(t, cuts, 3)
	require.EqualValues(t, 588_895, got)
	require.Equal(t, "100000\n", string(last[len(last)-7:]))
}

func TestFaults(t *testing.T) {
	f := toolboxtest.NewFake(t, toolboxtest.NewID())
	c := client.New(f.Dial, "")
	f.Refuse(true)
	_, err := c.Hello(t.Context(), &toolboxv1.Hello{})
	require.ErrorIs(t, err, client.ErrUnavailable)
	f.Refuse(false)
	f.Delay(time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Hello(ctx, &toolboxv1.Hello{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	f.Delay(0)

	id := toolboxtest.NewID()
	_, err = c.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sleep", "600"}})
	require.NoError(t, err)
	s, err := c.Attach(t.Context(), &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	f.Die()
	for err == nil {
		_, err = s.Recv()
	}
	require.NotErrorIs(t, err, io.EOF)
	_, err = c.Hello(t.Context(), &toolboxv1.Hello{})
	require.ErrorIs(t, err, client.ErrUnavailable)
}
