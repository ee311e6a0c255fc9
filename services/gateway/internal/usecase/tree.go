package usecase

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

const (
	// TreeBytes is what one archive holds of memory while it is unpacked or packed, beside the names that Hold counts.
	TreeBytes = 2 * partBytes
	// maxTreeEntries of an archive, maxTreeDepth of the directories in one that is packed.
	maxTreeEntries, maxTreeDepth = 200_000, 100
	// maxSkipped names of entries that were left out are told; the others are counted.
	maxSkipped = 100
	// archiveEnd is how many zeros are at the end of every archive.
	archiveEnd = 1024
)

// Tree is a directory that is moved as an archive.
type Tree struct {
	Sandbox, Path string
	// Hold takes memory for names, in bytes, until the call is over; false: there is none left.
	Hold func(n int) bool
}

// Unpacked is what has come of an archive.
type Unpacked struct {
	Files, Directories, Links int
	// Bytes of the files.
	Bytes int64
	// Skipped are the first names of what was left out, with the reason; Left is how many they are in all.
	Skipped []Skipped
	Left    int
}

// Skipped is an entry that was left out.
type Skipped struct{ Name, Why string }

// unpacking is an archive on its way into a directory.
type unpacking struct {
	u    *UseCases
	box  sandbox.Sandbox
	tree Tree
	// root: the directory is the workspace itself, which keeps its permissions.
	root  bool
	parts *parts
	// Links are made behind all files, so that none is written through one of them, and directories get their permissions and times last.
	links, dirs []*commandsv1.MakeCall
	Unpacked
}

// PutTree unpacks a tar archive into a directory of the workspace. Files and directories get the archive's permissions and times. Names that
// lead out of the directory end it; links that do, devices and the like are left out and told. What fails, or breaks off, leaves what was
// unpacked until then, each file whole: repeated it comes to the same end.
func (u *UseCases) PutTree(ctx context.Context, p principal.Principal, t Tree, body io.Reader) (Unpacked, error) {
	if err := p.Need(scopes.Files); err != nil {
		return Unpacked{}, err
	}
	s, err := u.ready(ctx, p, t.Sandbox)
	if err != nil {
		return Unpacked{}, err
	}
	at := path.Clean("/" + t.Path)
	w := &unpacking{u: u, box: s, tree: t, root: at == "/" || at == path.Clean("/"+s.Workspace.GetMountPath()), parts: new(parts)}
	if err := w.entries(ctx, body); err != nil {
		return w.Unpacked, err
	}
	return w.Unpacked, w.rest(ctx)
}

// entries reads the archive, and writes its files.
func (w *unpacking) entries(ctx context.Context, body io.Reader) error {
	source := &tail{r: body}
	archive := tar.NewReader(source)
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return source.ended()
		case errors.Is(err, tar.ErrInsecurePath):
			return outside(h.Name)
		case err != nil:
			return unreadable(err)
		case n == maxTreeEntries:
			return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "the archive has more than %d entries", maxTreeEntries)
		}
		if err := w.entry(ctx, h, archive); err != nil {
			return err
		}
	}
}

// unreadable is the fault of an archive that is none, or what kept its bytes from coming.
func unreadable(err error) error {
	var why *fault.Error
	if errors.As(err, &why) {
		return why
	}
	return fault.New(fault.InvalidArgument, fault.ReasonMalformed, "the body is no tar archive, or its end did not come").Because(err)
}

func outside(name string) error {
	return fault.Newf(fault.PermissionDenied, fault.ReasonPathEscapes, "the archive has a name that leads out of the directory: %.200q", name)
}

// local is a name of an archive below the directory, "." for the directory itself. ok is false for one that is none.
func local(name string) (clean string, ok bool) {
	if name == "" || path.IsAbs(name) || strings.IndexByte(name, 0) >= 0 || slices.Contains(strings.Split(name, "/"), "..") {
		return "", false
	}
	return path.Clean(name), true
}

func (w *unpacking) entry(ctx context.Context, h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // says something about others, and nothing that is kept
	}
	name, ok := local(h.Name)
	if !ok {
		return outside(h.Name)
	}
	at := path.Join(cmp.Or(w.tree.Path, "."), name)
	mode := uint32(h.Mode & 0o777) //nolint:gosec // nine bits
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return about(h.Name, w.write(ctx, Upload{Sandbox: w.box.ID, Path: at, Mode: cmp.Or(mode, 0o600), ModifiedAt: h.ModTime}, h, data))
	case tar.TypeDir:
		if name == "." && w.root {
			return nil
		}
		w.Directories++
		return w.later(&w.dirs, &commandsv1.MakeCall{Path: at, Mode: cmp.Or(mode, 0o700), ModifiedAt: timestamppb.New(h.ModTime)})
	case tar.TypeSymlink:
		if !within(name, h.Linkname) {
			w.skip(h.Name, "the link leads out of the directory")
			return nil
		}
		return w.later(&w.links, &commandsv1.MakeCall{Path: at, Symlink: h.Linkname})
	case tar.TypeLink:
		of, ok := local(h.Linkname)
		if !ok {
			return outside(h.Linkname)
		}
		return w.later(&w.links, &commandsv1.MakeCall{Path: at, Hardlink: path.Join(cmp.Or(w.tree.Path, "."), of)})
	}
	w.skip(h.Name, "it is neither file, directory nor link")
	return nil
}

// within reports whether a symbolic link leads to a place below the directory that its name is of, as far as its text says.
func within(name, target string) bool {
	if target == "" || path.IsAbs(target) || strings.IndexByte(target, 0) >= 0 {
		return false
	}
	to := path.Join(path.Dir(name), target)
	return to != ".." && !strings.HasPrefix(to, "../")
}

func (w *unpacking) skip(name, why string) {
	w.Left++
	if len(w.Skipped) < maxSkipped {
		w.Skipped = append(w.Skipped, Skipped{strings.ToValidUTF8(name, "\uFFFD"), why})
	}
}

// later keeps an entry until all files are there.
func (w *unpacking) later(list *[]*commandsv1.MakeCall, c *commandsv1.MakeCall) error {
	if !w.tree.Hold(256 + len(c.GetPath()) + len(c.GetSymlink()) + len(c.GetHardlink())) {
		return fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again").WithRetry(time.Second)
	}
	*list = append(*list, c)
	return nil
}

// write writes one file, at once.
func (w *unpacking) write(ctx context.Context, f Upload, h *tar.Header, data io.Reader) error {
	if h.Size > w.u.limits.MaxFileBytes-w.Bytes {
		return w.u.tooLarge()
	}
	file := newUploading(w.u, w.box, f, w.parts)
	err := file.collect(ctx, data)
	if err == nil {
		_, err = file.finish(ctx, "")
	}
	if err != nil {
		file.abort(ctx)
		return err
	}
	w.Files++
	w.Bytes += file.size
	return nil
}

// rest makes links, and then directories, those that are in others first: making what is in one changes its time.
func (w *unpacking) rest(ctx context.Context) error {
	for _, c := range w.links {
		err := w.make(ctx, c)
		switch {
		case err == nil:
			w.Links++
		case fault.Is(err, fault.ReasonPathEscapes), fault.Is(err, fault.ReasonPathNotFound), fault.Is(err, fault.ReasonPathNotFile):
			w.skip(c.GetPath(), fault.From(err).Message)
		default:
			return about(c.GetPath(), err)
		}
	}
	slices.SortStableFunc(w.dirs, func(a, b *commandsv1.MakeCall) int { return strings.Compare(b.GetPath(), a.GetPath()) })
	for _, c := range w.dirs {
		if err := w.make(ctx, c); err != nil {
			return about(c.GetPath(), err)
		}
	}
	return nil
}

func (w *unpacking) make(ctx context.Context, c *commandsv1.MakeCall) error {
	_, err := w.u.fileCall(ctx, w.box, &commandsv1.FileCall{Call: &commandsv1.FileCall_Make{Make: c}})
	return err
}

// about says of which entry a refusal is.
func about(name string, err error) error {
	var f *fault.Error
	if err == nil || !errors.As(err, &f) || f.Code == fault.Internal {
		return err
	}
	return fault.Newf(f.Code, f.Reason, "%.200q: %s", name, f.Message).WithRetry(f.RetryAfter).Because(err)
}

// tail passes an archive on and remembers how many zeros are at its end.
type tail struct {
	r     io.Reader
	zeros int64
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	i := n
	for i > 0 && p[i-1] == 0 {
		i--
	}
	if i > 0 {
		t.zeros = 0
	}
	t.zeros += int64(n - i)
	return n, err
}

// ended reads what is behind the last entry. An archive that ends without its end was cut by who made it.
func (t *tail) ended() error {
	if _, err := io.Copy(io.Discard, t); err != nil {
		return unreadable(err)
	}
	if t.zeros < archiveEnd {
		return fault.New(fault.InvalidArgument, fault.ReasonMalformed, "the archive has no end: it was cut")
	}
	return nil
}
