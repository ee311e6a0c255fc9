package files

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

// What is recorded of a terminal's size has happened, and what could not be recorded is an error.
func TestResizeIsRecordedBehindTheEffect(t *testing.T) {
	box, exec := ids.New(), ids.New()
	fake := toolboxtest.NewFake(t, box)
	tb := client.New(fake.Dial, "")
	first, second := &commonv1.TerminalSize{Columns: 80, Rows: 24}, &commonv1.TerminalSize{Columns: 120, Rows: 50}
	_, err := tb.Start(t.Context(), &toolboxv1.Start{ExecId: exec, Argv: []string{"sleep", "600"}, KeepStdin: true, Terminal: first})
	require.NoError(t, err)
	var recorded []string
	var fails error
	s := &Server{Resized: func(_ context.Context, agg subject.Aggregate, size *commonv1.TerminalSize) error {
		require.Equal(t, size.GetColumns(), fake.TerminalSize(exec).GetColumns())
		recorded = append(recorded, agg.Subject())
		return fails
	}}
	resize := func(id string, size *commonv1.TerminalSize) error {
		_, err := s.resize(t.Context(), tb, "acme", box, &commandsv1.ResizeCall{ExecId: id, Size: size})
		return err
	}
	require.NoError(t, resize(exec, second))
	require.Equal(t, []string{subject.Exec("acme", box, exec).Subject()}, recorded)
	for name, err := range map[string]error{
		"no size": resize(exec, nil), "too large": resize(exec, &commonv1.TerminalSize{Columns: 5000, Rows: 1}), "unknown": resize(ids.New(), second),
		"no id": resize("a.b", second),
	} {
		require.Error(t, err, name)
	}
	require.Len(t, recorded, 1)
	fails = errors.New("the log is full")
	require.ErrorIs(t, resize(exec, first), fails)
}
