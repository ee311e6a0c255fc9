package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// PartBytes is what one call moves of a file.
	PartBytes = 4 << 20
	// maxEntries is the most that one call lists.
	maxEntries = 10_000
)

// Upload writes r to a file of a sandbox and returns how many bytes it wrote. The first part replaces the file, the others are
// appended, so a reader may see the beginning before the end is there, and a failure leaves what it says it has written.
// progress is told how many bytes are there after each part.
func (c *Client) Upload(ctx context.Context, sandbox, name string, r io.Reader, mode uint32, progress func(done int64)) (int64, error) {
	part := make([]byte, PartBytes)
	var done int64
	for {
		n, err := io.ReadFull(r, part)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return done, fmt.Errorf("read what is to be copied: %w", err)
		}
		if n > 0 || done == 0 {
			req := &computev1.WriteFileRequest{SandboxId: sandbox, Path: name, Data: part[:n], Append: done > 0, Mode: mode}
			if err := c.write(ctx, req, done); err != nil {
				return done, err
			}
			done += int64(n)
			progress(done)
		}
		if last {
			return done, nil
		}
	}
}

// write writes one part behind the first `before` bytes of the file. An appended part whose answer was lost may be there: only
// the file's size tells, so it is asked for before the part is sent again.
func (c *Client) write(ctx context.Context, req *computev1.WriteFileRequest, before int64) error {
	p := c.patience(c.options.Patience)
	for {
		_, err := c.WriteFile(ctx, req)
		if err == nil || !temporary(err) || !p.wait(ctx, err) {
			return err
		}
		if !req.GetAppend() {
			continue
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
