package changes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An index is first the paths that are not looked at, absolute, then the directories of the image, each before those in it, in the order of
// their names. A directory is its entries in the order of their names: "d" or "f", the ctime in nanoseconds, a space, the name. Everything ends
// with a NUL, and a list with an empty one more.

// maxRecord bounds one record of an index: a path of a mount is the longest.
const maxRecord = 8 << 10

// entry is one of an index: what is not a directory counts as a file.
type entry struct {
	name  string
	dir   bool
	ctime int64
}

// WriteIndex writes the index of the image unpacked at root, which nobody writes to. What lies at or below the paths of except is left out.
func WriteIndex(out io.Writer, root string, except []string) error {
	x := &indexer{out: bufio.NewWriterSize(out, 64<<10), root: root, except: map[string]bool{}}
	for _, p := range except {
		p = path.Clean("/" + p)
		x.except[p] = true
		x.out.WriteString(p + "\x00") //nolint:errcheck // the flush tells
	}
	x.out.WriteByte(0) //nolint:errcheck // as above
	if err := x.dir("/"); err != nil {
		return fmt.Errorf("index %s: %w", root, err)
	}
	return x.out.Flush()
}

type indexer struct {
	out    *bufio.Writer
	root   string
	except map[string]bool
}

func (x *indexer) dir(at string) error {
	all, err := os.ReadDir(x.root + at)
	if err != nil {
		return err
	}
	var dirs []string
	for _, e := range all {
		p := path.Join(at, e.Name())
		if x.except[p] {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(x.root+p, &st); err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
		kind := "f"
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			kind, dirs = "d", append(dirs, p)
		}
		if _, err := x.out.WriteString(kind + strconv.FormatInt(st.Ctim.Nano(), 10) + " " + e.Name() + "\x00"); err != nil {
			return err
		}
	}
	if err := x.out.WriteByte(0); err != nil {
		return err
	}
	for _, p := range dirs {
		if err := x.dir(p); err != nil {
			return err
		}
	}
	return nil
}

// index reads one.
type index struct{ in *bufio.Reader }

var errIndex = errors.New("the index of the image cannot be read")

// record is the next one; empty at the end of a list.
func (x index) record() (string, error) {
	var b strings.Builder
	for b.Len() <= maxRecord {
		c, err := x.in.ReadByte()
		if err != nil {
			return "", errIndex
		}
		if c == 0 {
			return b.String(), nil
		}
		b.WriteByte(c)
	}
	return "", errIndex
}

func (x index) except() (map[string]bool, error) {
	out := map[string]bool{}
	for {
		r, err := x.record()
		if err != nil || r == "" {
			return out, err
		}
		out[r] = true
	}
}

// directory is the next one.
func (x index) directory() ([]entry, error) {
	var out []entry
	for {
		r, err := x.record()
		if err != nil || r == "" {
			return out, err
		}
		at, name, ok := strings.Cut(r[1:], " ")
		ctime, err := strconv.ParseInt(at, 10, 64)
		if !ok || err != nil || name == "" || r[0] != 'd' && r[0] != 'f' {
			return nil, errIndex
		}
		out = append(out, entry{name: name, dir: r[0] == 'd', ctime: ctime})
	}
}

// skip passes over the next directory and all in it.
func (x index) skip() error {
	all, err := x.directory()
	if err != nil {
		return err
	}
	return x.skipIn(all)
}

// skipIn passes over the directories in one that was read.
func (x index) skipIn(all []entry) error {
	for _, e := range all {
		if !e.dir {
			continue
		}
		if err := x.skip(); err != nil {
			return err
		}
	}
	return nil
}
