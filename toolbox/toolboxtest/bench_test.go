package toolboxtest_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

// BenchmarkAttach is one long output from the program's pipe through spool, socket and client.
func BenchmarkAttach(b *testing.B) {
	f := toolboxtest.NewFake(b, toolboxtest.NewID())
	c := client.New(f.Dial, "")
	id := toolboxtest.NewID()
	const size = 32 << 10
	b.SetBytes(size)
	b.ReportAllocs()
	_, err := c.Start(b.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"head", "-c", strconv.Itoa(size * b.N), "/dev/zero"}})
	require.NoError(b, err)
	s, err := c.Attach(b.Context(), &toolboxv1.Attach{ExecId: id})
	require.NoError(b, err)
	defer s.Close()
	for {
		e, err := s.Recv()
		require.NoError(b, err)
		if e.GetEnd() != nil {
			require.EqualValues(b, size*b.N, e.GetEnd().Stdout.Bytes)
			require.Zero(b, e.GetEnd().Stdout.DroppedBytes)
			return
		}
	}
}

// BenchmarkHello is the cost of a connection and one call.
func BenchmarkHello(b *testing.B) {
	f := toolboxtest.NewFake(b, toolboxtest.NewID())
	c := client.New(f.Dial, "")
	for b.Loop() {
		_, err := c.Hello(b.Context(), &toolboxv1.Hello{})
		require.NoError(b, err)
	}
}
