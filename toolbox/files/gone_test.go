package files

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// dying is a directory that fails with err once its names were read.
type dying struct {
	names []string
	err   error
}

func (d *dying) Readdirnames(int) ([]string, error) {
	names := d.names
	d.names = nil
	if len(names) > 0 {
		return names, nil
	}
	return nil, d.err
}

// The guest may remove a directory while it is read: what was seen of it is the list. All else that goes wrong there is told.
func TestADirectoryThatGoesWhileItIsListed(t *testing.T) {
	l := lister{left: 10, scan: maxScan}
	names, err := l.names(&dying{[]string{"b", "a"}, &os.PathError{Op: "readdirent", Path: "d", Err: unix.ENOENT}})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, names)
	_, err = l.names(&dying{[]string{"b"}, &os.PathError{Op: "readdirent", Path: "d", Err: unix.EACCES}})
	require.Equal(t, "path_not_file", reason(t, err))
}
