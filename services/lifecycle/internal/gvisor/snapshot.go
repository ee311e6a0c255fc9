package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/toolbox/changes"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

var _ runtime.Snapshotter = (*Driver)(nil)

const (
	// snapshotTimeout bounds what the helper in a sandbox may take.
	snapshotTimeout = 10 * time.Minute
	// indexPart is written to its standard input in one call.
	indexPart = 256 << 10
	// maxSaid is read of what it says about a failure.
	maxSaid = 4 << 10
)

// Snapshot implements runtime.Snapshotter. The sandbox's lock is not held: a destroy ends the helper, and with it this.
func (d *Driver) Snapshot(ctx context.Context, spec runtime.SnapshotSpec) (runtime.Snapshotted, error) {
	if err := checkID(spec.ID); err != nil {
		return runtime.Snapshotted{}, err
	}
	rec, err := readRecord(d.dir(spec.ID))
	if err != nil {
		return runtime.Snapshotted{}, fault.New(fault.FailedPrecondition, fault.ReasonSandboxLost, "the sandbox does not run").Because(err)
	}
	base, ok := d.o.Images.ByDigest(rec.ImageDigest)
	if !ok {
		return runtime.Snapshotted{}, fault.Newf(fault.FailedPrecondition, fault.ReasonImageInvalid, "the image %s that the sandbox was made from is gone", rec.ImageDigest)
	}
	except := append([]string{"/proc", "/sys", "/dev", "/tmp", "/.sandtrail"}, or(spec.MountPath, DefaultMountPath))
	taken, err := d.o.Images.Snapshot(ctx, image.Snapshot{
		Tenant: spec.Tenant, Ref: spec.Image, Sandbox: spec.ID, Sequence: spec.Sequence, At: spec.At, Base: base, BaseRef: spec.BaseImage,
		Changes: func(ctx context.Context, out io.Writer) error { return d.changes(ctx, spec.ID, base, except, out) },
		Used:    d.usesImage,
	}, d.o.Progress)
	if err != nil {
		return runtime.Snapshotted{}, err
	}
	return runtime.Snapshotted{Digest: taken.Digest, Bytes: uint64(taken.Bytes), Files: uint64(taken.Files), Pushed: taken.Pushed}, nil //nolint:gosec // counts
}

// usesImage reports whether a sandbox on this worker, stopped or not, is made from an image. Whatever cannot be read may be.
func (d *Driver) usesImage(digest string) bool {
	for _, pattern := range []string{"sandboxes/*", warmDir + "/*", keptDir + "/*"} {
		dirs, err := filepath.Glob(filepath.Join(d.o.StateDir, pattern))
		if err != nil {
			return true
		}
		for _, dir := range dirs {
			id := filepath.Base(dir)
			if !ids.Valid(id) {
				continue
			}
			if rec, err := readRecord(dir); err == nil && rec.ImageDigest == digest {
				return true
			}
			if was, known := d.runOf(id); known && was.ImageDigest == digest {
				return true
			}
		}
	}
	return false
}

// changes has a helper in the sandbox tell what is other there than in its image. The helper is told of the image, which it cannot see, through its
// standard input, and says nothing before: so its output has a reader from its first byte on, which holds it back, and none of it is dropped.
func (d *Driver) changes(ctx context.Context, id string, base image.Image, except []string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	box, exec := d.client(id), ids.New()
	start, err := box.Start(ctx, &toolboxv1.Start{
		ExecId: exec, Argv: []string{changes.Program}, WorkingDir: "/", KeepStdin: true, TimeoutMs: uint64(snapshotTimeout.Milliseconds()),
	})
	if err != nil {
		return unsnapped(err)
	}
	defer d.forgetHelper(context.WithoutCancel(ctx), box, exec)
	if end := start.GetState().GetEnd(); end != nil {
		return told(end, nil)
	}
	stream, err := box.Attach(ctx, &toolboxv1.Attach{ExecId: exec})
	if err != nil {
		return unsnapped(err)
	}
	defer stream.Close()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		in := &stdin{ctx: ctx, box: box, exec: exec}
		// A helper that has not heard all of it fails, and says so.
		if err := errors.Join(changes.WriteIndex(in, base.Rootfs, except), in.close()); err != nil {
			d.o.Log.Debug("the helper of a snapshot did not hear all of the image", "sandbox", id, "error", err)
		}
	}()
	err = copyOutput(stream, out)
	cancel()
	<-fed
	return err
}

// forgetHelper ends a helper and drops what is kept of its output: it is nobody's exec. Where the sandbox does not answer in time, that goes with it.
func (d *Driver) forgetHelper(ctx context.Context, box *client.Client, exec string) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	_, err := box.Signal(ctx, &toolboxv1.Signal{ExecId: exec, Tree: true, Reason: "cancelled"})
	var stream *client.Stream
	if err == nil {
		stream, err = box.Attach(ctx, &toolboxv1.Attach{ExecId: exec})
	}
	if err == nil {
		defer stream.Close()
		for err == nil {
			_, _, err = stream.Next()
		}
		_, err = box.Forget(ctx, &toolboxv1.Forget{ExecId: exec})
	}
	if err != nil {
		d.o.Log.Debug("the helper of a snapshot was not seen off", "exec", exec, "error", err)
	}
}

// copyOutput writes all output to out, up to the end, which must be a success.
func copyOutput(stream *client.Stream, out io.Writer) error {
	var said []byte
	var at uint64
	for {
		e, n, err := stream.Next()
		if err != nil {
			return unsnapped(err)
		}
		switch data := e.GetData(); {
		case e.GetEnd() != nil:
			return told(e.GetEnd(), said)
		case e.GetSkip() != nil:
			return unsnapped(errors.New("output of the helper was dropped"))
		case data.GetStream() != 1:
			piece, err := io.ReadAll(io.LimitReader(stream, int64(max(0, maxSaid-len(said)))))
			if err != nil {
				return unsnapped(err)
			}
			said = append(said, piece...)
		case data.GetOffset() != at:
			return unsnapped(errors.New("output of the helper is out of order"))
		default:
			if _, err := io.Copy(out, io.LimitReader(stream, int64(n))); err != nil {
				return err
			}
			at += uint64(n) //nolint:gosec // a length
		}
	}
}

// told is what the end of a helper means. What it says of itself is the tenant's own.
func told(end *toolboxv1.End, said []byte) error {
	switch {
	case end.GetReason() == "exited" && end.GetExitCode() == 0:
		return nil
	case end.GetReason() == "exited" && end.GetExitCode() == changes.ExitFailed:
		return fault.Newf(fault.FailedPrecondition, fault.ReasonStartFailed, "what the sandbox has changed could not be read: %s", bytes.ToValidUTF8(bytes.TrimSpace(said), []byte("?")))
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonStartFailed, "the helper in the sandbox ended before it was done: %s", or(end.GetMessage(), end.GetReason()))
}

// unsnapped is a failure on the way to the helper.
func unsnapped(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code != "unavailable" {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonStartFailed, "the sandbox did not start the helper: %s", refused.Message).Because(err)
	}
	return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox could not be read to the end").WithRetry(time.Second).Because(err)
}

// stdin writes to an exec's standard input.
type stdin struct {
	ctx  context.Context
	box  *client.Client
	exec string
	at   uint64
}

func (s *stdin) Write(p []byte) (int, error) {
	n := 0
	for part := range slices.Chunk(p, indexPart) {
		if err := s.send(part, false); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (s *stdin) close() error { return s.send(nil, true) }

func (s *stdin) send(part []byte, eof bool) error {
	for first := true; first || len(part) > 0; first = false {
		reply, err := s.box.Stdin(s.ctx, &toolboxv1.Stdin{ExecId: s.exec, Offset: s.at, Data: part, Eof: eof})
		if err != nil {
			return fmt.Errorf("tell the helper of the image: %w", err)
		}
		taken := reply.GetOffset() - s.at
		if reply.GetOffset() < s.at || taken > uint64(len(part)) {
			return os.ErrInvalid
		}
		s.at, part = reply.GetOffset(), part[taken:]
	}
	return nil
}
