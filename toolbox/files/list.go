package files

import (
	"cmp"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

const (
	// DefaultEntries is how many entries List returns unless told otherwise, MaxEntries the most that can be asked for.
	DefaultEntries = 1000
	MaxEntries     = 10_000
	// maxListBytes keeps an answer within one message.
	maxListBytes = 768 << 10
	// maxName is what Linux allows.
	maxName = 255
	// maxScan bounds the names that one List looks at: a guest can make directories of millions.
	maxScan = 200_000
)

// List returns the entries of a directory, with recursive those of all below it, sorted by path. Paths are relative to the
// workspace; bytes that are no UTF-8 come as U+FFFD. Symbolic links are listed and not followed. Where there are more than
// fit (max_entries, or a message), truncated is set and the shallow ones are kept, of one directory the first by name; only
// over 200,000 names it depends on the file system which.
//
// Without recursive, next is the name to go on behind (after) where there are more: the pages of a directory that does not change have each
// entry once, in the order of their bytes.
func (f *Files) List(r *toolboxv1.ListFiles) (*toolboxv1.ListFilesReply, error) {
	rel, err := f.inside(r.Path)
	switch {
	case err != nil:
		return nil, err
	case len(r.After) > 0 && r.Recursive:
		return nil, invalid("a recursive listing has no pages")
	case len(r.After) > maxName:
		return nil, invalid("after is no name")
	}
	l := lister{
		after: string(r.After),
		files: f, left: min(int(cmp.Or(r.MaxEntries, DefaultEntries)), MaxEntries), bytes: maxListBytes, scan: maxScan,
		reply: &toolboxv1.ListFilesReply{},
	}
	if err := l.directory(rel); err != nil {
		return nil, err
	}
	// Level by level, so that what is pending is bounded by what was listed.
	for r.Recursive && len(l.pending) > 0 && !l.reply.Truncated {
		next := l.pending[0]
		l.pending = l.pending[1:]
		// A directory that went away or became a link meanwhile has nothing to list.
		var full *listError
		if err := l.directory(next); errors.As(err, &full) {
			return nil, full.err
		}
	}
	if !r.Recursive && l.reply.Truncated {
		l.reply.Next = []byte(l.last)
	}
	slices.SortFunc(l.reply.Entries, func(a, b *toolboxv1.FileEntry) int { return cmp.Compare(a.Path, b.Path) })
	return l.reply, nil
}

type lister struct {
	files             *Files
	left, bytes, scan int
	reply             *toolboxv1.ListFilesReply
	pending           []string
	// after is the name that the listing goes on behind, last the one that it came to.
	after, last string
}

// listError is a failure that is not the guest's doing.
type listError struct{ err error }

func (e *listError) Error() string { return e.err.Error() }
func (e *listError) Unwrap() error { return e.err }

// directory adds the entries of one directory.
func (l *lister) directory(rel string) error {
	dir, err := l.files.openDir(rel)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := l.names(dir)
	if err != nil {
		return err
	}
	fd := int(dir.Fd())
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		at := path.Join(rel, name)
		e := &toolboxv1.FileEntry{
			Path:       strings.ToValidUTF8(at, "\uFFFD"),
			Size:       uint64(st.Size),
			IsDir:      st.Mode&unix.S_IFMT == unix.S_IFDIR,
			Mode:       st.Mode & 0o7777,
			ModifiedAt: timestamppb.New(time.Unix(st.Mtim.Unix())),
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			e.LinkTarget = linkTarget(fd, name)
		}
		l.bytes -= len(e.Path) + len(e.LinkTarget) + 64
		if l.left == 0 || l.bytes < 0 {
			l.reply.Truncated = true
			return nil
		}
		l.left--
		l.last = name
		l.reply.Entries = append(l.reply.Entries, e)
		if e.IsDir {
			l.pending = append(l.pending, at)
		}
	}
	return nil
}

// names are the first names of a directory, sorted: one more than there is room for, so that it shows that there are more.
func (l *lister) names(dir interface {
	Readdirnames(int) ([]string, error)
},
) ([]string, error) {
	want := l.left + 1
	var names []string
	keep := func() {
		slices.Sort(names)
		names = names[:min(want, len(names))]
	}
	for {
		batch, err := dir.Readdirnames(512)
		for _, name := range batch {
			if !Hidden(name) && name > l.after {
				names = append(names, name)
			}
		}
		if len(names) > 2*want+512 {
			keep()
		}
		if l.scan -= len(batch); l.scan < 0 {
			l.reply.Truncated = true
			err = io.EOF
		}
		// A directory that was removed while it is open has nothing more in it.
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			keep()
			return names, nil
		}
		if err != nil {
			return nil, &listError{classify(err)}
		}
	}
}

func linkTarget(dir int, name string) string {
	buf := make([]byte, maxPath)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(buf[:n]), "\uFFFD")
}
