package app_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// A file that comes in several calls is there once, with the last of them: who reads all the time sees the old one or the new one.
func TestAFileInPartsIsThereAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	old, data := bytes.Repeat([]byte("o"), 3<<20), bytes.Repeat([]byte("new."), 1<<20)
	_, err := w.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: box, Path: "f", Data: old})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan map[int64]bool, 1)
	go func() {
		sizes := map[int64]bool{}
		for ctx.Err() == nil {
			if r, err := w.ReadFile(ctx, &computev1.ReadFileRequest{SandboxId: box, Path: "f", MaxBytes: 1}); err == nil {
				sizes[r.GetTotalSize()] = true
			}
		}
		seen <- sizes
	}()
	id, half := ids.New(), len(data)/2
	part := func(offset int, data []byte, last bool) (*computev1.WriteFileResponse, error) {
		return w.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: box, Path: "f", Data: data, UploadId: id, Offset: int64(offset), Last: last})
	}
	for range 2 { // a part may be repeated
		r, err := part(0, data[:half], false)
		require.NoError(t, err)
		require.Zero(t, r.GetSize())
		require.Empty(t, r.GetSha256())
	}
	for range 2 {
		r, err := part(half, data[half:], true)
		require.NoError(t, err)
		require.EqualValues(t, len(data), r.GetSize())
	}
	stop()
	for size := range <-seen {
		require.Contains(t, []int64{int64(len(old)), int64(len(data))}, size)
	}
	r, err := w.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: box, Path: "f", MaxBytes: 8})
	require.NoError(t, err)
	require.Equal(t, []any{"new.new.", int64(len(data))}, []any{string(r.GetData()), r.GetTotalSize()})

	id = ids.New()
	_, err = part(0, old, false)
	require.NoError(t, err)
	_, err = w.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: box, Path: "f", UploadId: id, Abort: true})
	require.NoError(t, err)
	_, err = part(len(old), old, true)
	require.Equal(t, string(fault.ReasonIllegalState), detail(t, err).GetReason(), "what was given up has no end")
	for name, req := range map[string]*computev1.WriteFileRequest{
		"offset": {Offset: 1}, "last": {Last: true}, "abort": {Abort: true}, "append": {UploadId: ids.New(), Append: true},
	} {
		req.SandboxId, req.Path = box, "f"
		_, err = w.WriteFile(t.Context(), req)
		require.Equal(t, string(fault.ReasonValidation), detail(t, err).GetReason(), name)
	}
}
