package usecase

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// PartBytes is how much of a file is in memory at once while it is read, and twice that while it is written.
const PartBytes = partBytes

// File is what is known of a file.
type File struct {
	Size int64
	// Version is another one whenever the content may be another; empty where the sandbox's toolbox is of a version that does not say.
	Version string
	// Unsettled: the file was changed so short a time ago that a further change may not show in Version.
	Unsettled  bool
	ModifiedAt time.Time
	// Mode are permission bits; 0 where the toolbox does not say.
	Mode uint32
	// SHA256 of the whole file, where it was asked for.
	SHA256 []byte
}

// Reading is a file that is read in parts.
type Reading struct {
	u    *UseCases
	box  sandbox.Sandbox
	path string
	File
}

// OpenFile tells of a file, with its digest where that is asked for, and lets it be read.
func (u *UseCases) OpenFile(ctx context.Context, p principal.Principal, id, path string, digest bool) (*Reading, error) {
	if err := p.Need(scopes.Files); err != nil {
		return nil, err
	}
	s, err := u.ready(ctx, p, id)
	if err != nil {
		return nil, err
	}
	reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Stat{Stat: &commandsv1.StatCall{Path: path, Digest: digest}}})
	if err != nil {
		return nil, err
	}
	r := &Reading{u: u, box: s, path: path, File: File{
		Size: reply.GetTotalSize(), Version: reply.GetVersion(), Unsettled: reply.GetUnsettled(), SHA256: reply.GetSha256(),
		Mode: reply.GetMode(),
	}}
	if reply.GetModifiedAt() != nil {
		r.ModifiedAt = reply.GetModifiedAt().AsTime()
	}
	return r, nil
}

// Part reads up to limit bytes, at most PartBytes, from an offset on: at least one where the file has more. A file that is another than when
// it was opened is a conflict: its parts would not belong together.
func (r *Reading) Part(ctx context.Context, offset, limit int64) ([]byte, error) {
	reply, err := r.u.fileCall(ctx, r.box, &commandsv1.FileCall{Call: &commandsv1.FileCall_Read{
		Read: &commandsv1.ReadPart{Path: r.path, Offset: offset, MaxBytes: min(limit, partBytes)},
	}})
	switch {
	case err != nil:
		return nil, err
	case reply.GetVersion() != r.Version || reply.GetTotalSize() != r.Size || len(reply.GetData()) == 0 && offset < r.Size:
		return nil, fault.New(fault.Conflict, fault.ReasonConflict, "the file changed while it was read; read it again")
	}
	return reply.GetData(), nil
}

// Upload is a file that is to be written.
type Upload struct {
	Sandbox, Path string
	// Mode are permission bits; 0: 0644 for a new file, as it is for an old one.
	Mode uint32
	// ModifiedAt is the time of modification that the file gets; zero: as it comes.
	ModifiedAt time.Time
	// Check refuses what came, before the file changes; nil takes everything.
	Check func(sha256 []byte, size int64) error
}

// PutFile writes what body has to a file, whatever its size, and returns what was written once it is there. Until then, and where body does not
// come to its end, the file is as it was. Repeated with the same key and content it answers again and writes nothing: the content takes
// part in what the key is bound to, so that it has to come again.
func (u *UseCases) PutFile(ctx context.Context, p principal.Principal, key string, f Upload, body io.Reader) (Written, error) {
	if err := p.Need(scopes.Files); err != nil {
		return Written{}, err
	}
	if key != "" {
		if err := checkKey(key); err != nil {
			return Written{}, err
		}
	}
	s, err := u.ready(ctx, p, f.Sandbox)
	if err != nil {
		return Written{}, err
	}
	w := newUploading(u, s, f, new(parts))
	if err := w.collect(ctx, body); err != nil {
		w.abort(ctx)
		return Written{}, err
	}
	sum := w.sum.Sum(nil)
	if f.Check != nil {
		if err := f.Check(sum, w.size); err != nil {
			w.abort(ctx)
			return Written{}, err
		}
	}
	done, err := u.finish(ctx, p, key, w, sum)
	if err != nil || !w.finished {
		w.abort(ctx)
	}
	return done, err
}

// finish makes what was collected the file, once for a key.
func (u *UseCases) finish(ctx context.Context, p principal.Principal, key string, w *uploading, sum []byte) (Written, error) {
	c, err := u.claim(ctx, w.box.Tenant, "WriteFile", key, p.Actor, &computev1.WriteFileRequest{
		SandboxId: w.file.Sandbox, Path: w.file.Path, Mode: w.file.Mode, Data: binding(sum, w.file.ModifiedAt),
	})
	if err != nil {
		return Written{}, err
	}
	return u.once(ctx, c, func(ctx context.Context) (Written, error) { return w.finish(ctx, c.id()) })
}

// binding is what an idempotency key is bound to of a file beside its place and permissions.
func binding(sum []byte, modified time.Time) []byte {
	if modified.IsZero() {
		return sum
	}
	return binary.BigEndian.AppendUint64(bytes.Clone(sum), uint64(modified.UnixNano())) //nolint:gosec // bits that tell times apart
}

// parts hold what is under way of an upload: one that is read, and one before it that is held back until it is known not to be the last.
type parts [2][]byte

// uploading is a file on its way: all but its last part lie in the workspace, under a name of their own.
type uploading struct {
	u     *UseCases
	box   sandbox.Sandbox
	file  Upload
	id    string
	sum   hash.Hash
	parts *parts
	// last is the part that is held back; sent is how much lies in the workspace, size all of it.
	last       []byte
	sent, size int64
	finished   bool
}

func newUploading(u *UseCases, s sandbox.Sandbox, f Upload, p *parts) *uploading {
	return &uploading{u: u, box: s, file: f, id: ids.New(), sum: sha256.New(), parts: p}
}

// collect reads body to its end.
func (w *uploading) collect(ctx context.Context, body io.Reader) error {
	for i := 0; ; i++ {
		if w.parts[i%2] == nil {
			w.parts[i%2] = make([]byte, partBytes)
		}
		next := w.parts[i%2]
		n, err := io.ReadFull(steady{body}, next)
		over := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !over {
			return err
		}
		if w.last != nil && n > 0 {
			if err := w.pass(ctx, w.last); err != nil {
				return err
			}
			w.sent += int64(len(w.last))
		}
		if n > 0 || w.last == nil {
			w.last = next[:n]
			w.sum.Write(w.last)
			w.size += int64(n)
		}
		switch {
		case w.size > w.u.limits.MaxFileBytes:
			return w.u.tooLarge()
		case over:
			return nil
		}
	}
}

// steady is a body whose breaking off is never taken for a short last part.
type steady struct{ r io.Reader }

func (s steady) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) { // and not wrapped: it would still be taken for one
		err = fault.New(fault.InvalidArgument, fault.ReasonMalformed, "the end of the file did not come")
	}
	return n, err
}

// tooLarge is the fault of a file, or of an archive, over what one call writes.
func (u *UseCases) tooLarge() error {
	return fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "it has more than the %d bytes that are taken", u.limits.MaxFileBytes)
}

// MaxFile is the most bytes of a file that one call writes.
func (u *UseCases) MaxFile() int64 { return u.limits.MaxFileBytes }

// restless is how long a part is sent again while nothing answers: a service that is restarted does not cost an upload of an hour.
const restless = 20 * time.Second

// pass sends a part that is not the last one. It is the same part however often it comes.
func (w *uploading) pass(ctx context.Context, data []byte) error {
	end := time.Now().Add(restless)
	for {
		_, err := w.part(ctx, data, false, "")
		if err == nil || fault.CodeOf(err) != fault.Unavailable || time.Now().After(end) {
			return err
		}
		if err := pause.For(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (w *uploading) part(ctx context.Context, data []byte, last bool, finish string) (*commandsv1.FileReply, error) {
	part := &commandsv1.WritePart{
		Path: w.file.Path, UploadId: w.id, Offset: w.sent, Data: data, Last: last, Mode: w.file.Mode, FinishId: finish,
	}
	if last && !w.file.ModifiedAt.IsZero() {
		part.ModifiedAt = timestamppb.New(w.file.ModifiedAt)
	}
	return w.u.fileCall(ctx, w.box, &commandsv1.FileCall{Call: &commandsv1.FileCall_Write{Write: part}})
}

// finish sends the last part. Of large files a sandbox's worker finishes one at a time: nothing was done of one that has to wait.
func (w *uploading) finish(ctx context.Context, id string) (Written, error) {
	end := time.Now().Add(wholeWait)
	for {
		reply, err := w.part(ctx, w.last, true, id)
		if err == nil {
			w.finished = true
			return Written{Bytes: w.size, Size: reply.GetSize(), SHA256: reply.GetSha256()}, nil
		}
		if fault.CodeOf(err) != fault.Unavailable || !fault.Is(err, fault.ReasonConflict) || time.Now().After(end) {
			return Written{}, err
		}
		if err := pause.For(ctx, time.Second); err != nil {
			return Written{}, err
		}
	}
}

// abort removes what was collected. What it does not reach is removed some time after its last part.
func (w *uploading) abort(ctx context.Context) {
	if w.sent == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeWait)
	defer cancel()
	_, err := w.u.fileCall(ctx, w.box, &commandsv1.FileCall{Call: &commandsv1.FileCall_Write{
		Write: &commandsv1.WritePart{Path: w.file.Path, UploadId: w.id, Abort: true},
	}})
	if err != nil {
		w.u.logger.WarnContext(ctx, "an upload that was given up is left for a while", "sandbox", w.box.ID, "error", err)
	}
}

// DeleteFile removes what is at a path: a link and not what it points to, a directory with what is in it where recursive is set. Repeated with
// the same key it answers again and removes nothing.
func (u *UseCases) DeleteFile(ctx context.Context, p principal.Principal, key, id, path string, recursive bool) error {
	if err := p.Need(scopes.Files); err != nil {
		return err
	}
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return err
	}
	call := &commandsv1.FileCall{SandboxId: id, Call: &commandsv1.FileCall_Delete{Delete: &commandsv1.DeleteCall{Path: path, Recursive: recursive}}}
	c, err := u.claim(ctx, s.Tenant, "DeleteFile", key, p.Actor, call)
	if err != nil {
		return err
	}
	_, err = u.once(ctx, c, func(ctx context.Context) (Written, error) {
		s, err := u.running(ctx, s)
		if err == nil {
			_, err = u.fileCall(ctx, s, call)
		}
		if c.repeated && fault.Is(err, fault.ReasonPathNotFound) {
			err = nil // an earlier call with this key came to its end without telling
		}
		return Written{}, err
	})
	return err
}

// ListPage lists a directory behind a name, nil for its beginning, in the order of names. next is the name to go on behind, nil at the end.
func (u *UseCases) ListPage(
	ctx context.Context, p principal.Principal, id, path string, limit uint32, after []byte,
) (page []*commandsv1.FileInfo, next []byte, err error) {
	if err := p.Need(scopes.Files); err != nil {
		return nil, nil, err
	}
	s, err := u.ready(ctx, p, id)
	if err != nil {
		return nil, nil, err
	}
	reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_List{
		List: &commandsv1.ListCall{Path: path, MaxEntries: limit, After: after},
	}})
	return reply.GetEntries(), reply.GetNext(), err
}
