package files

import (
	"context"
	"errors"
	"io"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// TempAge is how old a temporary file must be before Clean removes it: older than any upload under way.
const TempAge = time.Hour

// Clean removes temporary files that a toolbox which was killed has left in the workspace. It looks at no more than 200,000
// names, so it is best effort; what it misses stays hidden from List.
func (f *Files) Clean(ctx context.Context) error {
	pending, scan := []string{"."}, maxScan
	for len(pending) > 0 && scan > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		rel := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		found, err := f.cleanDir(rel, &scan)
		if err != nil {
			return err
		}
		pending = append(pending, found...)
	}
	return nil
}

// cleanDir cleans one directory and returns those in it.
func (f *Files) cleanDir(rel string, scan *int) (below []string, err error) {
	dir, err := f.openDir(rel)
	if err != nil {
		// Gone, or swapped for something else by the guest.
		return nil, nil
	}
	defer dir.Close()
	fd := int(dir.Fd())
	for *scan > 0 {
		names, err := dir.Readdirnames(512)
		*scan -= len(names)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			kind := st.Mode & unix.S_IFMT
			if Hidden(name) && kind == unix.S_IFREG && f.options.Now().Sub(time.Unix(st.Mtim.Unix())) > TempAge {
				_ = unix.Unlinkat(fd, name, 0)
			}
			if kind == unix.S_IFDIR && len(below) < maxScan/100 {
				below = append(below, path.Join(rel, name))
			}
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return nil, classify(err)
		}
	}
	return below, nil
}
