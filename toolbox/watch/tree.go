package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/files"
)

// changes are what is asked for of a directory.
const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

// errTooMany: the tree has more directories than are watched.
var errTooMany = errors.New("too many directories")

// tree is the directories that are watched.
type tree struct {
	fd        int
	root      string
	recursive bool
	most      int
	// names are those of directories by their number, relative to root; numbers the other way round.
	names   map[int]string
	numbers map[string]int
	tell    func(Event)
}

// newTree watches a directory. Close its fd.
func newTree(root string, recursive bool, tell func(Event)) (*tree, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	t := &tree{
		fd: fd, root: root, recursive: recursive, most: MostDirectories, names: map[int]string{}, numbers: map[string]int{}, tell: tell,
	}
	if err := t.add("."); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if recursive {
		t.below(".", false)
	}
	return t, nil
}

// add watches one directory.
func (t *tree) add(name string) error {
	if len(t.names) >= t.most {
		return errTooMany
	}
	wd, err := unix.InotifyAddWatch(t.fd, path.Join(t.root, name), changes)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		return errTooMany
	case err != nil:
		return os.NewSyscallError("inotify_add_watch", err)
	}
	if old, ok := t.names[wd]; ok {
		delete(t.numbers, old)
	}
	t.names[wd], t.numbers[name] = name, wd
	return nil
}

// below watches the directories in one that is watched. tell: what is in them is new, and may have come before they were watched.
func (t *tree) below(name string, tell bool) {
	entries, err := os.ReadDir(path.Join(t.root, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		t.tell(Event{name, Overflow}) // nobody is told what happens there
	}
	for _, e := range entries {
		at := path.Join(name, e.Name())
		if tell {
			t.tell(Event{at, Create})
		}
		if e.IsDir() {
			t.enter(at, tell)
		}
	}
}

// enter watches a directory and those in it. One that is gone already has told so where it was.
func (t *tree) enter(name string, tell bool) {
	err := t.add(name)
	switch {
	case err == nil:
		t.below(name, tell)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
		t.tell(Event{name, Overflow})
	}
}

// leave gives up a directory that has another name now, and those in it.
func (t *tree) leave(name string) {
	for at, wd := range t.numbers {
		if at == name || strings.HasPrefix(at, name+"/") {
			_, _ = unix.InotifyRmWatch(t.fd, uint32(wd)) //nolint:gosec // numbers are not negative
			t.gone(wd)
		}
	}
}

func (t *tree) gone(wd int) {
	delete(t.numbers, t.names[wd])
	delete(t.names, wd)
}

// headBytes is the length of an event of inotify before its name.
const headBytes = unix.SizeofInotifyEvent

// handle tells what a read of inotify brought; false: the root is not there any more.
func (t *tree) handle(data []byte) bool {
	for len(data) >= headBytes {
		wd := int(int32(binary.NativeEndian.Uint32(data))) //nolint:gosec // as the kernel means it
		mask, size := binary.NativeEndian.Uint32(data[4:]), int(binary.NativeEndian.Uint32(data[12:]))
		if len(data) < headBytes+size {
			return true
		}
		name, _, _ := bytes.Cut(data[headBytes:headBytes+size], []byte{0})
		data = data[headBytes+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			t.tell(Event{".", Overflow})
			continue
		}
		if dir, ok := t.names[wd]; ok && !t.one(wd, mask, dir, string(name)) {
			return false
		}
	}
	return true
}

// one tells one event of a directory.
func (t *tree) one(wd int, mask uint32, dir, name string) bool {
	at, isDir := path.Join(dir, name), mask&unix.IN_ISDIR != 0 && t.recursive
	switch {
	case files.Hidden(name):
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		if dir != "." {
			if mask&unix.IN_MOVE_SELF == 0 {
				t.gone(wd)
			}
			return true // its parent tells
		}
		kind := Remove
		if mask&unix.IN_MOVE_SELF != 0 {
			kind = Rename
		}
		t.tell(Event{".", kind})
		return false
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		t.tell(Event{at, Create})
		if isDir {
			t.enter(at, true)
		}
	case mask&unix.IN_MOVED_FROM != 0:
		t.tell(Event{at, Rename})
		if isDir {
			t.leave(at)
		}
	case mask&unix.IN_DELETE != 0:
		t.tell(Event{at, Remove})
	case mask&unix.IN_MODIFY != 0:
		t.tell(Event{at, Write})
	case mask&unix.IN_ATTRIB != 0:
		t.tell(Event{at, Chmod})
	}
	return true
}

// outside tells a change that was made from outside, at an absolute path. Directories on the way to it may be new.
func (t *tree) outside(e Event) {
	at, below := strings.CutPrefix(e.Name, strings.TrimSuffix(t.root, "/")+"/")
	switch {
	case e.Type == Overflow:
		at = "."
	case !below || !t.recursive && strings.Contains(at, "/"):
		return
	}
	for i, c := range at {
		if c != '/' {
			continue
		}
		dir := at[:i]
		if _, known := t.numbers[dir]; !known && t.add(dir) == nil {
			t.tell(Event{dir, Create})
			t.below(dir, true)
		}
	}
	if e.Type == Remove {
		t.leave(at)
	}
	t.tell(Event{at, e.Type})
}
