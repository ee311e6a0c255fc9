package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// Make makes a directory, with those that it is in, or a link in the place of what is there but for a directory. It may be called again.
func (f *Files) Make(r *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error) {
	rel, err := f.inside(r.Path)
	switch {
	case err != nil:
		return nil, err
	case Hidden(path.Base(rel)):
		return nil, invalid("the name is reserved")
	case r.Mode > 0o7777 || !validTime(r.ModifiedAt):
		return nil, invalid("mode or modified_at is out of bounds")
	case r.Symlink != "" && r.Hardlink != "":
		return nil, invalid("an entry is one kind of link")
	case r.Symlink == "" && r.Hardlink == "":
		return &toolboxv1.MakeEntryReply{}, f.directory(rel, r)
	case rel == ".":
		return nil, notFile()
	}
	return &toolboxv1.MakeEntryReply{}, f.link(rel, r)
}

// directory makes one, and gives it what is asked for.
func (f *Files) directory(rel string, r *toolboxv1.MakeEntry) error {
	dir, err := f.makeDir(rel)
	if err != nil {
		return err
	}
	defer dir.Close() // it was not written through this descriptor
	if r.Mode != 0 {
		if err := dir.Chmod(os.FileMode(r.Mode & 0o777)); err != nil {
			return classify(err)
		}
	}
	if r.ModifiedAt != nil {
		if err := setTime(int(dir.Fd()), ".", r.ModifiedAt.AsTime()); err != nil {
			return err
		}
	}
	return f.sync(dir)
}

// link makes one under a name of its own first, which then takes the place of what is there, at once.
func (f *Files) link(rel string, r *toolboxv1.MakeEntry) error {
	parent, err := f.makeDir(path.Dir(rel))
	if err != nil {
		return err
	}
	defer parent.Close() // it was not written through this descriptor
	var id [8]byte
	rand.Read(id[:])
	temp := path.Join(path.Dir(rel), tempPrefix+hex.EncodeToString(id[:]))
	if r.Symlink != "" {
		err = f.symlink(rel, r.Symlink, temp)
	} else {
		err = f.hardlink(r.Hardlink, temp)
	}
	if err != nil {
		return err
	}
	// Two names of one file: a rename does nothing then, and leaves both.
	defer func() { _ = f.root.Remove(temp) }()
	switch err := f.root.Rename(temp, rel); {
	case errors.Is(err, os.ErrExist): // a directory is there
		return notFile()
	case err != nil:
		return classify(err)
	}
	return f.sync(parent)
}

// symlink makes one whose target stays inside, by its text. A text that leads out by way of other links is followed by nobody outside.
func (f *Files) symlink(rel, target, temp string) error {
	if len(target) > maxPath || strings.ContainsRune(target, 0) || path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(rel), target)) {
		return escapes()
	}
	if err := f.root.Symlink(target, temp); err != nil {
		return classify(err)
	}
	if !f.options.Own {
		return nil
	}
	return classify(f.root.Lchown(temp, f.options.UID, f.options.GID))
}

func (f *Files) hardlink(of, temp string) error {
	source, err := f.inside(of)
	if err != nil {
		return err
	}
	if Hidden(path.Base(source)) {
		return invalid("the name is reserved")
	}
	return classify(f.root.Link(source, temp))
}

// setTime sets the time of modification of a name in an open directory, never of what a link points to.
func setTime(dir int, name string, at time.Time) error {
	when, err := unix.TimeToTimespec(at)
	if err != nil {
		return invalid("modified_at is out of bounds")
	}
	return classify(unix.UtimesNanoAt(dir, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, when}, unix.AT_SYMLINK_NOFOLLOW))
}

func validTime(t *timestamppb.Timestamp) bool { return t == nil || t.IsValid() }
