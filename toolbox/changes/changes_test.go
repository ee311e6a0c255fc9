package changes

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// told is what a helper says of a tree that was indexed and then changed: entries by name, with a mark of their type and what they hold.
func told(t *testing.T, make, change string, except ...string) map[string]string {
	t.Helper()
	root := t.TempDir()
	sh(t, root, make)
	var index bytes.Buffer
	require.NoError(t, WriteIndex(&index, root, except))
	sh(t, root, change)
	var out bytes.Buffer
	require.NoError(t, Write(&out, &index, root))
	require.Zero(t, index.Len(), "all of the index was read")
	return entries(t, &out)
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

func entries(t *testing.T, in io.Reader) map[string]string {
	t.Helper()
	got := map[string]string{}
	tr := tar.NewReader(in)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		content, err := io.ReadAll(tr)
		require.NoError(t, err)
		got[h.Name] = string(h.Typeflag) + ":" + h.Linkname + string(content)
	}
}

const tree = `mkdir -p a/b z; echo 1 > a/f; echo 2 > a/b/g; echo 3 > z/h; ln -s f a/link; ln a/f a/same`

func TestChanges(t *testing.T) {
	for what, c := range map[string]struct {
		change string
		want   map[string]string
	}{
		"nothing":                               {"true", map[string]string{}},
		"a file is other, of its time and size": {"touch -r a/f ref; echo 9 > a/b/g; touch -r ref a/b/g; rm ref", map[string]string{"a/b/g": "0:9\n"}},
		"a mode is other":                       {"chmod 600 a/b/g", map[string]string{"a/b/g": "0:2\n"}},
		"a file is new":                         {"echo 4 > a/b/new", map[string]string{"a/b/": "5:", "a/b/new": "0:4\n"}},
		"a file is gone":                        {"rm z/h", map[string]string{"z/": "5:", "z/.wh.h": "0:"}},
		"a directory is gone":                   {"rm -r a", map[string]string{".wh.a": "0:"}},
		"a directory is new, and deep":          {"mkdir -p n/m; echo 5 > n/m/f", map[string]string{"n/": "5:", "n/m/": "5:", "n/m/f": "0:5\n"}},
		"a directory is a file now":             {"rm -r a/b; echo 6 > a/b", map[string]string{"a/": "5:", "a/b": "0:6\n"}},
		"a directory is a link now":             {"rm -r z; ln -s / z", map[string]string{"z": "2:/"}},
		"a file is a directory now":             {"rm z/h; mkdir z/h; echo 7 > z/h/i", map[string]string{"z/": "5:", "z/h/": "5:", "z/h/i": "0:7\n"}},
		"a link leads elsewhere":                {"ln -sfn /etc/passwd a/link", map[string]string{"a/": "5:", "a/link": "2:/etc/passwd"}},
		"two names of a new file":               {"echo 8 > z/one; ln z/one z/two", map[string]string{"z/": "5:", "z/one": "0:8\n", "z/two": "1:z/one"}},
		"a pipe is not waited for":              {"mkfifo z/p", map[string]string{"z/": "5:", "z/p": "6:"}},
		"names that are no names elsewhere": {"echo x > 'z/a\nb'; echo y > z/-rf; printf q > \"z/$(printf '\\377')\"", map[string]string{
			"z/": "5:", "z/a\nb": "0:x\n", "z/-rf": "0:y\n", "z/\xff": "0:q",
		}},
		"a name that looks as if something were gone": {"echo x > z/.wh.h; rm z/h", map[string]string{"z/": "5:", "z/.wh.h": "0:"}},
	} {
		t.Run(what, func(t *testing.T) {
			require.Equal(t, c.want, told(t, tree, strings.ReplaceAll(c.change, "\\n", "\n")))
		})
	}
}

func TestWhatIsLeftOutIsNeitherNewNorGone(t *testing.T) {
	got := told(t, tree+"; mkdir tmp; echo t > tmp/image", "rm -r z tmp/image; mkdir z; echo n > z/n; echo n > tmp/n", "/z", "/tmp")
	require.Empty(t, got)
	// What the image does not have is left out all the same.
	require.Empty(t, told(t, tree, "mkdir job; echo w > job/w", "/job"))
}

func TestSocketsAndOtherFileSystemsAreLeftOut(t *testing.T) {
	require.Zero(t, os.Geteuid(), "only root can mount")
	root := t.TempDir()
	sh(t, root, tree+"; mkdir mount; echo under > mount/f")
	var index bytes.Buffer
	require.NoError(t, WriteIndex(&index, root, nil))
	require.NoError(t, unix.Mount("none", filepath.Join(root, "mount"), "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(filepath.Join(root, "mount"), 0)) })
	sh(t, root, "echo over > mount/g")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(root, "a/s")}))
	var out bytes.Buffer
	require.NoError(t, Write(&out, &index, root))
	require.Equal(t, map[string]string{"a/": "5:"}, entries(t, &out))
}

func TestTheSameChangesAreTheSameBytes(t *testing.T) {
	root := t.TempDir()
	sh(t, root, tree)
	var index bytes.Buffer
	require.NoError(t, WriteIndex(&index, root, nil))
	sh(t, root, "for i in 1 2 3 4 5 6 7 8 9; do mkdir -p n/$i; echo $i > n/$i/f; done; rm -r a")
	var all [2]bytes.Buffer
	for i := range all {
		require.NoError(t, Write(&all[i], bytes.NewReader(index.Bytes()), root))
	}
	require.Equal(t, all[0].Bytes(), all[1].Bytes())
}

func TestAnIndexThatEndsTooSoonIsAnError(t *testing.T) {
	root := t.TempDir()
	sh(t, root, tree)
	var index bytes.Buffer
	require.NoError(t, WriteIndex(&index, root, nil))
	for n := range index.Len() {
		require.Error(t, Write(io.Discard, bytes.NewReader(index.Bytes()[:n]), root), "%d bytes", n)
	}
	bad := slices.Concat([]byte("/x\x00\x00"), []byte("q1 a\x00\x00"))
	require.ErrorIs(t, Write(io.Discard, bytes.NewReader(bad), root), errIndex)
	require.ErrorIs(t, Write(io.Discard, strings.NewReader(strings.Repeat("a", 2*maxRecord)), root), errIndex)
}
