package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Reader reads an export. What is wrong with its files it tells and goes on where it can; one segment is in memory at a time.
type Reader struct {
	dir     string
	from    uint64
	found   func(Finding)
	numbers []uint64
	plan    plan
	// digest of the manifest before, "" at first; next is the number that comes next, last the last sequence so far.
	digest string
	next   uint64
	last   uint64
	unzip  *zstd.Decoder
	room   []byte
}

// OpenExport opens an export from a sequence on; found is told what is wrong with its files, nil where nobody wants to know. It gives
// fault.NotFound where the directory holds none.
func OpenExport(dir string, from uint64, found func(Finding)) (*Reader, error) {
	r := &Reader{dir: dir, from: from, found: found, next: 1}
	if found == nil {
		r.found = func(Finding) {}
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fault.Newf(fault.NotFound, fault.ReasonPathNotFound, "there is no export in %s", dir).Because(err)
	}
	for _, n := range names {
		digits, ok := strings.CutSuffix(n.Name(), ".json")
		if number, err := strconv.ParseUint(digits, 10, 64); ok && err == nil && manifestName(number) == n.Name() {
			r.numbers = append(r.numbers, number)
		}
	}
	slices.Sort(r.numbers)
	r.plan, err = readPlan(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(r.numbers) == 0:
		return nil, fault.Newf(fault.NotFound, fault.ReasonPathNotFound, "there is no export in %s", dir).Because(err)
	case err != nil:
		r.tell(Manifest, planName, "it is missing or cannot be read: %v", unnamed(err))
	}
	if r.unzip, err = decompressor(); err != nil {
		return nil, fmt.Errorf("open export: %w", err)
	}
	return r, nil
}

// unnamed leaves paths out of an error: findings name files themselves.
func unnamed(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// LogID is that of the log; "" where the export does not say.
func (r *Reader) LogID() string { return r.plan.LogID }

// To is the last sequence that the export is to have; 0 where it does not say.
func (r *Reader) To() uint64 { return r.plan.To }

func (r *Reader) tell(k Kind, file, format string, args ...any) {
	r.found(Finding{Kind: k, File: file, What: fmt.Sprintf(format, args...)})
}

// Close frees the decoder.
func (r *Reader) Close() {
	if r.unzip != nil {
		r.unzip.Close()
		r.unzip = nil
	}
}

// Next gives the events of the next segment.
func (r *Reader) Next(ctx context.Context) ([]Entry, error) {
	for len(r.numbers) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n := r.numbers[0]
		r.numbers = r.numbers[1:]
		m, ok := r.manifest(n)
		if ok && m.Last < r.from {
			r.last = m.Last
			continue
		}
		all := r.segment(n, m, ok)
		for len(all) > 0 && all[0].Seq < r.from {
			all = all[1:]
		}
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, io.EOF
}

// manifest reads one and checks that it follows from the one before it.
func (r *Reader) manifest(n uint64) (m manifest, ok bool) {
	if n > r.next {
		r.tell(Manifest, manifestName(r.next), "it is missing, and %s is there", manifestName(n))
	}
	followed := n == r.next
	r.next = n + 1
	b, err := readBounded(manifestPath(r.dir, n), maxManifest)
	if err != nil {
		r.tell(Manifest, manifestName(n), "it cannot be read: %v", unnamed(err))
		r.digest = ""
		return m, false
	}
	m, err = decodeManifest(b)
	switch {
	case err != nil:
		r.tell(Manifest, manifestName(n), "%v", err)
	case m.Number != n:
		r.tell(Manifest, manifestName(n), "it is that of segment %d", m.Number)
	case followed && m.Previous != r.digest:
		r.tell(Manifest, manifestName(n), "it does not cover the manifest before it: one of the two was changed")
	case r.plan.LogID != "" && m.LogID != r.plan.LogID:
		r.tell(Manifest, manifestName(n), "it is of another log, %s", m.LogID)
	case m.First <= r.last:
		r.tell(Manifest, manifestName(n), "it begins at %d, and the one before it ends at %d", m.First, r.last)
	}
	r.digest = sumOf(b)
	return m, err == nil && m.Number == n
}

// segment reads the events of one; ok says that its manifest can be read.
func (r *Reader) segment(n uint64, m manifest, ok bool) []Entry {
	name := segmentName(n)
	b, err := readBounded(segmentPath(r.dir, n), 2*maxSegment)
	if err != nil {
		r.tell(Segment, name, "it is missing or cannot be read: %v", unnamed(err))
		return nil
	}
	if ok && sumOf(b) != m.SHA256 {
		r.tell(Segment, name, "it has another digest than its manifest says")
	}
	// What was read before is not in this memory any more: entries are their reader's to keep.
	raw, err := r.unzip.DecodeAll(b, make([]byte, 0, len(r.room)))
	if err != nil {
		r.tell(Segment, name, "it cannot be decompressed: %d bytes could be", len(raw))
	}
	if len(raw) > len(r.room) {
		r.room = raw
	}
	all, err := readSegment(raw)
	if err != nil {
		r.tell(Segment, name, "%v", err)
	}
	if len(all) == 0 {
		return nil
	}
	if first, last := all[0].Seq, all[len(all)-1].Seq; ok && (first != m.First || last != m.Last || uint64(len(all)) != m.Events) {
		r.tell(Segment, name, "it has %d events from %d to %d, its manifest says %d from %d to %d", len(all), first, last, m.Events, m.First, m.Last)
	}
	r.last = all[len(all)-1].Seq
	return all
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return b, err
}

// Digest is the SHA-256 of the last manifest that was read: behind the end that of the whole export.
func (r *Reader) Digest() string { return r.digest }

// FromExport opens sources on an export; what is wrong with its files is told to found.
func FromExport(dir string, found func(Finding)) Opener {
	return func(_ context.Context, from uint64, _ ...string) (Source, error) { return OpenExport(dir, from, found) }
}
