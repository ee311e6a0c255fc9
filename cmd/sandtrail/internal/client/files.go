package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// PartBytes is what one call moves of a file.
	PartBytes = 4 << 20
	// maxEntries is the most that one call lists.
	maxEntries = 10_000
)

// Upload makes what r has a file of a sandbox, at once, and returns how many bytes that were: readers see the old file or the new one, and a
// failure leaves the old one. progress is told how many bytes were taken after each part. (A server of an earlier version knows no parts: there
// the file grows as they come.)
func (c *Client) Upload(ctx context.Context, sandbox, name string, r io.Reader, mode uint32, progress func(done int64)) (int64, error) {
	parts := [2][]byte{make([]byte, PartBytes), nil}
	n, over, err := readPart(r, parts[0])
	if err != nil {
		return 0, err
	}
	req := &computev1.WriteFileRequest{SandboxId: sandbox, Path: name, Mode: mode, Data: parts[0][:n]}
	if over {
		if _, err := Retry(ctx, c, func(ctx context.Context) (*computev1.WriteFileResponse, error) { return c.WriteFile(ctx, req) }); err != nil {
			return 0, err
		}
		progress(int64(n))
		return int64(n), nil
	}
	parts[1], req.UploadId = make([]byte, PartBytes), ids.New()
	for i := 1; ; i++ {
		// What comes behind a part says whether it is the last one.
		next := parts[i%2]
		if n, over, err = readPart(r, next); err != nil {
			return 0, c.giveUp(ctx, req, err)
		}
		req.Last = over && n == 0
		res, err := Retry(ctx, c, func(ctx context.Context) (*computev1.WriteFileResponse, error) { return c.WriteFile(ctx, req) })
		if err != nil {
			return 0, c.giveUp(ctx, req, err)
		}
		done := req.GetOffset() + int64(len(req.GetData()))
		progress(done)
		switch {
		case req.GetLast():
			return done, nil
		case res.GetSize() > 0:
			return c.appendRest(ctx, sandbox, name, io.MultiReader(bytes.NewReader(next[:n]), r), mode, done, progress)
		}
		req.Offset, req.Data = done, next[:n]
	}
}

// readPart fills part, or reads to the end of r: then it is over.
func readPart(r io.Reader, part []byte) (n int, over bool, err error) {
	n, err = io.ReadFull(r, part)
	over = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !over {
		return n, false, fmt.Errorf("read what is to be copied: %w", err)
	}
	return n, over, nil
}

// abortWait bounds the call that gives an upload up.
const abortWait = 5 * time.Second

// giveUp removes what came of an upload, as far as the server is in reach: otherwise that goes by itself.
func (c *Client) giveUp(ctx context.Context, req *computev1.WriteFileRequest, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWait)
	defer cancel()
	_, _ = c.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: req.GetSandboxId(), Path: req.GetPath(), UploadId: req.GetUploadId(), Abort: true}) // see above
	return cause
}

// appendRest writes r behind the first done bytes of a file, part by part.
func (c *Client) appendRest(ctx context.Context, sandbox, name string, r io.Reader, mode uint32, done int64, progress func(done int64)) (int64, error) {
	part := make([]byte, PartBytes)
	for {
		n, over, err := readPart(r, part)
		if err != nil {
			return done, err
		}
		if n > 0 {
			if err := c.write(ctx, &computev1.WriteFileRequest{SandboxId: sandbox, Path: name, Data: part[:n], Append: true, Mode: mode}, done); err != nil {
				return done, err
			}
			done += int64(n)
			progress(done)
		}
		if over {
			return done, nil
		}
	}
}

// write appends one part behind the first `before` bytes of the file. One whose answer was lost may be there: only the file's size tells, so
// it is asked for before the part is sent again.
func (c *Client) write(ctx context.Context, req *computev1.WriteFileRequest, before int64) error {
	p := c.patience(c.options.Patience)
	for {
		_, err := c.WriteFile(ctx, req)
		if err == nil || !temporary(err) || !p.wait(ctx, err) {
			return err
		}
		have, err := Retry(ctx, c, func(ctx context.Context) (*computev1.ReadFileResponse, error) {
			return c.ReadFile(ctx, &computev1.ReadFileRequest{SandboxId: req.GetSandboxId(), Path: req.GetPath(), MaxBytes: 1})
		})
		switch {
		case err != nil:
			return err
		case have.GetTotalSize() == before+int64(len(req.GetData())):
			return nil
		case have.GetTotalSize() != before:
			return fault.Newf(fault.Conflict, fault.ReasonConflict, "%s was changed by somebody else while it was written", req.GetPath())
		}
	}
}

// Download writes a file of a sandbox to w and returns how many bytes it wrote. A file whose size changes meanwhile is a
// conflict: its parts would not belong together.
func (c *Client) Download(ctx context.Context, sandbox, name string, w io.Writer, progress func(done, total int64)) (int64, error) {
	var done, total int64
	for first := true; ; first = false {
		res, err := Retry(ctx, c, func(ctx context.Context) (*computev1.ReadFileResponse, error) {
			return c.ReadFile(ctx, &computev1.ReadFileRequest{SandboxId: sandbox, Path: name, Offset: done, MaxBytes: PartBytes})
		})
		if err != nil {
			return done, err
		}
		if first {
			total = res.GetTotalSize()
		}
		n := int64(len(res.GetData()))
		if res.GetTotalSize() != total || done+n > total || (n == 0 || res.GetEof()) && done+n != total {
			return done, fault.Newf(fault.Conflict, fault.ReasonConflict, "%s changed while it was read; copy it again", name)
		}
		if _, err := w.Write(res.GetData()); err != nil {
			return done, fmt.Errorf("write what was copied: %w", err)
		}
		done += n
		progress(done, total)
		if done == total {
			return done, nil
		}
	}
}

// Stat finds the entry of a file or directory in the listing of the directory above it. Nil: it was not among the first 10,000
// entries there, which says nothing about it.
func (c *Client) Stat(ctx context.Context, sandbox, name string) (*computev1.FileEntry, error) {
	clean := path.Clean(name)
	if clean == "." || clean == "/" {
		return &computev1.FileEntry{Path: clean, IsDir: true}, nil
	}
	above := path.Dir(clean)
	if above == "." {
		above = ""
	}
	entries, truncated, err := c.list(ctx, sandbox, above, false)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if path.Base(e.GetPath()) == path.Base(clean) {
			return e, nil
		}
	}
	if !truncated {
		return nil, fault.Newf(fault.NotFound, fault.ReasonPathNotFound, "there is no %s in the sandbox", name)
	}
	return nil, nil
}

// Walk gives every entry below a directory, directories before what is in them, links not followed. Entries' paths are relative
// to the workspace. A directory with more than 10,000 entries is refused.
func (c *Client) Walk(ctx context.Context, sandbox, dir string, each func(*computev1.FileEntry) error) error {
	entries, truncated, err := c.list(ctx, sandbox, dir, true)
	if err != nil {
		return err
	}
	deep := !truncated
	if truncated {
		if entries, truncated, err = c.list(ctx, sandbox, dir, false); err != nil {
			return err
		}
		if truncated {
			return fault.Newf(fault.FailedPrecondition, fault.ReasonTooLarge, "%s has more than %d entries; pack it with tar in the sandbox and copy that", dir, maxEntries)
		}
	}
	for _, e := range entries {
		if err := each(e); err != nil {
			return err
		}
		if e.GetIsDir() && !deep {
			if err := c.Walk(ctx, sandbox, e.GetPath(), each); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Client) list(ctx context.Context, sandbox, dir string, recursive bool) ([]*computev1.FileEntry, bool, error) {
	res, err := Retry(ctx, c, func(ctx context.Context) (*computev1.ListFilesResponse, error) {
		return c.ListFiles(ctx, &computev1.ListFilesRequest{SandboxId: sandbox, Path: dir, Recursive: recursive, MaxEntries: maxEntries})
	})
	return res.GetEntries(), res.GetTruncated(), err
}
