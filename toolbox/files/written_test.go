package files

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// A write is answered once the file is there, with its size and the digest of what was written, however often it is asked.
func TestWriteTellsWhatIsThere(t *testing.T) {
	f, ws := workspace(t)
	require.NoError(t, os.Symlink("target", filepath.Join(ws, "link")))
	check := func(r *toolboxv1.WriteFile, whole, written string) {
		t.Helper()
		for range 2 {
			reply, err := f.Write(r)
			require.NoError(t, err)
			there, err := os.ReadFile(filepath.Join(ws, r.Path))
			require.NoError(t, err)
			require.Equal(t, whole, string(there))
			require.Equal(t, sum(written), reply.Sha256)
			require.EqualValues(t, len(whole), reply.Size)
			require.EqualValues(t, len(written), reply.BytesWritten)
			if r.UploadId == "" {
				return
			}
		}
	}
	check(&toolboxv1.WriteFile{Path: "one", Data: []byte("abc"), Last: true}, "abc", "abc")
	check(&toolboxv1.WriteFile{Path: "empty", Last: true}, "", "")
	check(&toolboxv1.WriteFile{Path: "one", UploadId: "a", Data: []byte("def"), Append: true, Last: true}, "abcdef", "def")
	check(&toolboxv1.WriteFile{Path: "new", UploadId: "n", Data: []byte("x"), Append: true, Last: true}, "x", "x")
	check(&toolboxv1.WriteFile{Path: "link", UploadId: "l", Data: []byte("through"), Last: true}, "through", "through")
	check(&toolboxv1.WriteFile{Path: "link", UploadId: "m", Data: []byte("!"), Append: true, Last: true}, "through!", "!")

	reply, err := f.Write(&toolboxv1.WriteFile{Path: "parts", UploadId: "p", Data: []byte("123")})
	require.NoError(t, err)
	require.Empty(t, reply.Sha256, "nothing is there yet")
	require.NoFileExists(t, filepath.Join(ws, "parts"))
	check(&toolboxv1.WriteFile{Path: "parts", UploadId: "p", Offset: 3, Data: []byte("456"), Last: true}, "123456", "123456")
}

func sum(data string) []byte {
	s := sha256.Sum256([]byte(data))
	return s[:]
}
