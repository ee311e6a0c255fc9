package usecase

import (
	"archive/tar"
	"cmp"
	"context"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// treePage is how many entries of a directory are listed at once.
const treePage = 256

// packing is a directory on its way into an archive.
type packing struct {
	u       *UseCases
	box     sandbox.Sandbox
	tree    Tree
	archive *tar.Writer
	// Entries of the archive until now, and those that were left out.
	entries, left int
}

// GetTree writes a directory of the workspace as a tar archive, in the order of names, with permissions, times and links as they are. left is
// how many entries were left out: what is neither file, directory nor link, has a name that is no UTF-8, or is gone by the time that it
// is read. A file that changes while it is read is a conflict. Before anything is written the directory was found to be one.
func (u *UseCases) GetTree(ctx context.Context, p principal.Principal, t Tree, out io.Writer) (left int, err error) {
	if err := p.Need(scopes.Files); err != nil {
		return 0, err
	}
	s, err := u.ready(ctx, p, t.Sandbox)
	if err != nil {
		return 0, err
	}
	w := &packing{u: u, box: s, tree: t, archive: tar.NewWriter(out)}
	if err := w.directory(ctx, cmp.Or(t.Path, "."), "", maxTreeDepth); err != nil {
		return w.left, err
	}
	return w.left, w.archive.Close()
}

// directory writes what is in one; name is its own in the archive, empty for the first.
func (w *packing) directory(ctx context.Context, at, name string, depth int) error {
	if depth == 0 {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonTooLarge, "there are directories over %d levels deep", maxTreeDepth)
	}
	for after := []byte(nil); ; {
		reply, err := w.u.fileCall(ctx, w.box, &commandsv1.FileCall{Call: &commandsv1.FileCall_List{
			List: &commandsv1.ListCall{Path: at, MaxEntries: treePage, After: after},
		}})
		switch {
		case name != "" && (fault.Is(err, fault.ReasonPathNotFound) || fault.Is(err, fault.ReasonPathNotDirectory)):
			return nil // gone, or another thing, since it was listed
		case err != nil:
			return err
		}
		held := 0
		for _, e := range reply.GetEntries() {
			held += 256 + len(e.GetPath()) + len(e.GetLinkTarget())
		}
		if !w.tree.Hold(held) {
			return fault.New(fault.Unavailable, fault.ReasonConflict, "too many large requests at once; try again")
		}
		for _, e := range reply.GetEntries() {
			if err := w.entry(ctx, at, name, e, depth); err != nil {
				return err
			}
		}
		w.tree.Hold(-held)
		if after = reply.GetNext(); len(after) == 0 {
			return nil
		}
	}
}

func (w *packing) entry(ctx context.Context, at, above string, e *commandsv1.FileInfo, depth int) error {
	base := path.Base(e.GetPath())
	at, name := path.Join(at, base), path.Join(above, base)
	if strings.ContainsRune(base+e.GetLinkTarget(), utf8.RuneError) {
		w.left++ // bytes that are no UTF-8 are listed as that rune
		return nil
	}
	if w.entries++; w.entries > maxTreeEntries {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonTooLarge, "the directory has more than %d entries", maxTreeEntries)
	}
	h := &tar.Header{Name: name, Mode: int64(e.GetMode() & 0o7777), Format: tar.FormatPAX}
	if e.GetModifiedAt() != nil {
		h.ModTime = e.GetModifiedAt().AsTime()
	}
	switch {
	case e.GetIsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := w.archive.WriteHeader(h); err != nil {
			return err
		}
		return w.directory(ctx, at, name, depth-1)
	case e.GetLinkTarget() != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.GetLinkTarget()
		return w.archive.WriteHeader(h)
	}
	return w.file(ctx, at, h)
}

// file writes one of one version: its size stands before its content.
func (w *packing) file(ctx context.Context, at string, h *tar.Header) error {
	first, err := w.u.fileCall(ctx, w.box, &commandsv1.FileCall{Call: &commandsv1.FileCall_Read{Read: &commandsv1.ReadPart{Path: at, MaxBytes: partBytes}}})
	switch {
	case fault.Is(err, fault.ReasonPathNotFound), fault.Is(err, fault.ReasonPathNotFile), fault.Is(err, fault.ReasonPathEscapes):
		w.left++
		return nil
	case err != nil:
		return about(h.Name, err)
	}
	h.Typeflag, h.Size = tar.TypeReg, first.GetTotalSize()
	if err := w.archive.WriteHeader(h); err != nil {
		return err
	}
	f := &Reading{u: w.u, box: w.box, path: at, File: File{Size: h.Size, Version: first.GetVersion()}}
	data := first.GetData()
	for sent := int64(0); ; {
		data = data[:min(int64(len(data)), h.Size-sent)]
		if _, err := w.archive.Write(data); err != nil {
			return err
		}
		if sent += int64(len(data)); sent == h.Size {
			return nil
		}
		if data, err = f.Part(ctx, sent, h.Size-sent); err != nil {
			return about(h.Name, err)
		}
	}
}
