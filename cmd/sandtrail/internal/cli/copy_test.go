package cli_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
)

// Until all of a file is there, readers see the old one; where its end does not come, they still do, and nothing is left.
func TestCpIsAtomic(t *testing.T) {
	f := newFake(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 9<<16)
	parts := 0
	f.files["f"] = &file{data: []byte("old")}
	f.onPart = func(now *file) {
		if parts++; string(now.data) != "old" {
			t.Errorf("the file has %d bytes while part %d comes", len(now.data), parts)
		}
	}
	require.Equal(t, 0, f.runWith(t, content, nil, "cp", "-", box+":f").code)
	require.Equal(t, 3, parts)
	require.True(t, bytes.Equal(content, f.files["f"].data))
	parts = 0
	f.files["f"].data = []byte("old")
	require.Equal(t, 0, f.runWith(t, content[:8<<20], nil, "cp", "-", box+":f").code, "an end at the end of a part")
	require.Equal(t, 2, parts)
	require.True(t, bytes.Equal(content[:8<<20], f.files["f"].data))

	f.files["f"].data = []byte("old")
	api, err := client.New(client.Options{Addr: f.addr})
	require.NoError(t, err)
	defer api.Close()
	broken := io.MultiReader(bytes.NewReader(content), iotest.ErrReader(errors.New("the disk is gone")))
	_, err = api.Upload(t.Context(), box, "f", broken, 0o644, func(int64) {})
	require.ErrorContains(t, err, "the disk is gone")
	require.Equal(t, "old", string(f.files["f"].data))

	f.earlier, f.onPart = true, nil
	require.Equal(t, 0, f.runWith(t, content, nil, "cp", "-", box+":f").code)
	require.True(t, bytes.Equal(content, f.files["f"].data), "a server that knows no parts")
}
