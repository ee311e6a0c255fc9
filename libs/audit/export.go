package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Export writes the log into a directory: segments that are never changed once they have their name, and beside each a manifest.
type Export struct {
	// Dir is made when absent. One export at a time may write to it.
	Dir string
	// LogID is the incarnation of the log.
	LogID string
	// To is the last sequence to export. An export that was not finished goes to where it was to go, whatever is asked now, and the
	// same bytes come out as if it had not been interrupted; the next call goes further.
	To uint64
	// Progress is told up to which sequence was written, and how far it goes.
	Progress func(seq, to uint64)

	// step is called before each thing that is written; a test ends the export there.
	step func(string) error
	// most is how many events a segment has at most; 0 is segmentEvents.
	most uint64
}

// Exported is what stands in the directory now.
type Exported struct {
	Segments uint64 `json:"segments"`
	LastSeq  uint64 `json:"last_sequence"`
	// Bytes of all segments.
	Bytes int64 `json:"bytes"`
	// Digest is the SHA-256 of the last manifest, which covers the whole export.
	Digest string `json:"digest"`
	// Added is how many events this call has written.
	Added uint64 `json:"added_events"`
}

// Run writes what is missing. It gives fault.FailedPrecondition where the directory holds something else, fault.Conflict where another
// export writes to it. Interrupted at any point it may be run again.
func (x *Export) Run(ctx context.Context, open Opener) (Exported, error) {
	var done Exported
	if err := os.MkdirAll(x.Dir, 0o755); err != nil {
		return done, fmt.Errorf("make the directory of the export: %w", err)
	}
	lock, err := lockDir(x.Dir)
	if err != nil {
		return done, err
	}
	defer func() { _ = lock.Close() }()
	last, err := x.resume(&done)
	if err != nil {
		return done, err
	}
	if last.Last >= x.To {
		return done, nil
	}
	s, err := open(ctx, last.Last+1)
	if err != nil {
		return done, err
	}
	w := &writer{x: x, done: &done, last: last, seg: segment{most: cmp.Or(x.most, segmentEvents)}}
	if w.zip, err = compressor(); err != nil {
		s.Close()
		return done, fmt.Errorf("export: %w", err)
	}
	err = Each(ctx, s, w.add)
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err == nil && w.seg.events > 0 {
		err = w.flush()
	}
	if err == nil && done.LastSeq < x.To {
		err = fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "the log gives no event behind %d, and should go to %d", done.LastSeq, x.To)
	}
	return done, err
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the export: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fault.Newf(fault.Conflict, fault.ReasonConflict, "another export writes to %s", dir).Because(err)
	}
	return f, nil
}

// resume reads how far the export has come, throws away what a killed one left half-made, and settles how far it goes.
func (x *Export) resume(done *Exported) (last manifest, err error) {
	names, err := os.ReadDir(x.Dir)
	if err != nil {
		return last, fmt.Errorf("read the directory of the export: %w", err)
	}
	for _, n := range names {
		if strings.HasSuffix(n.Name(), tmpSuffix) {
			if err := os.Remove(filepath.Join(x.Dir, n.Name())); err != nil {
				return last, fmt.Errorf("remove what an export has left: %w", err)
			}
		}
	}
	p, err := readPlan(x.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if slices.ContainsFunc(names, func(n fs.DirEntry) bool { return !strings.HasSuffix(n.Name(), tmpSuffix) }) {
			return last, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "%s is not empty and holds no export", x.Dir)
		}
	case err != nil:
		return last, damaged(planName, err)
	case p.LogID != x.LogID:
		return last, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "%s holds the export of another log, %s", x.Dir, p.LogID)
	}
	if last, err = x.written(done); err != nil {
		return last, err
	}
	if last.Last < p.To {
		x.To = p.To
		return last, nil
	}
	if x.To <= p.To {
		return last, nil
	}
	b, err := encodeJSON(plan{exportVersion, x.LogID, x.To})
	if err != nil {
		return last, err
	}
	return last, x.write(filepath.Join(x.Dir, planName), b)
}

// written follows the manifests to the last one whose segment is whole.
func (x *Export) written(done *Exported) (last manifest, err error) {
	for n := uint64(1); ; n++ {
		b, err := os.ReadFile(manifestPath(x.Dir, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return last, fmt.Errorf("read a manifest: %w", err)
		}
		m, err := decodeManifest(b)
		if err == nil && (m.Number != n || m.LogID != x.LogID || m.Previous != done.Digest || m.First <= last.Last) {
			err = errors.New("it does not follow from the one before it")
		}
		if err != nil {
			return last, damaged(manifestName(n), err)
		}
		info, err := os.Stat(segmentPath(x.Dir, n))
		if err != nil || info.Size() != m.Bytes {
			return last, damaged(segmentName(n), errors.Join(errors.New("it is not there or has another size"), err))
		}
		last = m
		done.Segments, done.LastSeq, done.Bytes, done.Digest = n, m.Last, done.Bytes+m.Bytes, sumOf(b)
	}
	if last.Number == 0 {
		return last, nil
	}
	if b, err := os.ReadFile(segmentPath(x.Dir, last.Number)); err != nil || sumOf(b) != last.SHA256 {
		return last, damaged(segmentName(last.Number), errors.Join(errors.New("it has another digest than its manifest says"), err))
	}
	return last, nil
}

func damaged(name string, err error) error {
	return fault.Newf(fault.FailedPrecondition, fault.ReasonAuditDamaged, "%s of the export is damaged: verify it, and export into another directory", name).Because(err)
}

func readPlan(dir string) (plan, error) {
	b, err := os.ReadFile(filepath.Join(dir, planName))
	if err != nil {
		return plan{}, err
	}
	return decodePlan(b)
}

const tmpSuffix = ".tmp"

// write makes a file that is whole or not there, also after a loss of power.
func (x *Export) write(path string, b []byte) (err error) {
	if err := x.at("write " + filepath.Base(path)); err != nil {
		return err
	}
	f, err := os.Create(path + tmpSuffix)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	half := len(b) / 2
	_, err = f.Write(b[:half])
	if err == nil {
		err = x.at("half of " + filepath.Base(path))
	}
	if err == nil {
		_, err = f.Write(b[half:])
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := x.at("rename " + filepath.Base(path)); err != nil {
		return err
	}
	if err := os.Rename(path+tmpSuffix, path); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	dir, err := os.Open(x.Dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (x *Export) at(step string) error {
	if x.step == nil {
		return nil
	}
	return x.step(step)
}

// writer cuts the log into segments.
type writer struct {
	x    *Export
	done *Exported
	zip  *zstd.Encoder
	seg  segment
	last manifest
	room []byte
}

// errEnough: everything that was wanted has come.
var errEnough = errors.New("enough")

func (w *writer) add(e *Entry) error {
	if e.Seq > w.x.To {
		return errEnough
	}
	w.seg.add(e)
	if e.Seq < w.x.To && !w.seg.full() {
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	if e.Seq == w.x.To {
		return errEnough
	}
	return nil
}

func (w *writer) flush() error {
	x := w.x
	w.room = w.zip.EncodeAll(w.seg.b, w.room[:0])
	m := manifest{
		Version: exportVersion, LogID: x.LogID, Number: w.last.Number + 1, First: w.seg.first, Last: w.seg.last, Events: w.seg.events,
		Bytes: int64(len(w.room)), SHA256: sumOf(w.room), Previous: w.done.Digest,
	}
	b, err := encodeJSON(m)
	if err != nil {
		return err
	}
	if err := x.write(segmentPath(x.Dir, m.Number), w.room); err != nil {
		return err
	}
	if err := x.write(manifestPath(x.Dir, m.Number), b); err != nil {
		return err
	}
	w.last = m
	d := w.done
	d.Segments, d.LastSeq, d.Bytes, d.Digest, d.Added = m.Number, m.Last, d.Bytes+m.Bytes, sumOf(b), d.Added+m.Events
	w.seg.clear()
	if x.Progress != nil {
		x.Progress(m.Last, x.To)
	}
	return nil
}
