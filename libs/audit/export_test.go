package audit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
)

// files are a directory's files and what is in them.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, n.Name()))
		require.NoError(t, err)
		all[n.Name()] = string(b)
	}
	return all
}

func TestAnExportThatIsKilledAnywhereGoesOnToTheSameBytes(t *testing.T) {
	w := recorded(t)
	log := w.open()
	var steps []string
	whole := Export{Dir: t.TempDir(), LogID: log.ID, To: log.LastSeq, most: 5, step: func(s string) error {
		steps = append(steps, s)
		return nil
	}}
	want, err := whole.Run(t.Context(), log.Open)
	require.NoError(t, err)
	require.EqualValues(t, 5, want.Segments)
	require.Len(t, steps, 3*(1+2*5))
	killed := errors.New("killed")
	// The log has grown when the export goes on; it goes to where it was to go.
	w.live(2)
	grown := w.open()
	for i, at := range steps {
		t.Run(at, func(t *testing.T) {
			n := 0
			x := Export{Dir: t.TempDir(), LogID: log.ID, To: log.LastSeq, most: 5, step: func(string) error {
				if n++; n > i {
					return killed
				}
				return nil
			}}
			_, err := x.Run(t.Context(), log.Open)
			require.ErrorIs(t, err, killed)
			x.step, x.To = nil, grown.LastSeq
			if i < 3 {
				x.To = log.LastSeq // nothing says yet where it was to go
			}
			got, err := x.Run(t.Context(), grown.Open)
			require.NoError(t, err)
			require.Equal(t, files(t, whole.Dir), files(t, x.Dir))
			got.Added = want.Added
			require.Equal(t, want, got)
		})
	}
}

func TestAnExportGoesOnWhereItEnded(t *testing.T) {
	w := recorded(t)
	log := w.open()
	x := Export{Dir: filepath.Join(t.TempDir(), "new"), LogID: log.ID, To: 12, most: 5}
	first, err := x.Run(t.Context(), log.Open)
	require.NoError(t, err)
	before := files(t, x.Dir)
	x.To = log.LastSeq
	second, err := x.Run(t.Context(), log.Open)
	require.NoError(t, err)
	require.EqualValues(t, 12, first.Added)
	require.EqualValues(t, 11, second.Added)
	after := files(t, x.Dir)
	for name, text := range before {
		if name != planName {
			require.Equal(t, text, after[name], "a file that has its name never changes")
		}
	}
	again, err := x.Run(t.Context(), log.Open)
	require.NoError(t, err)
	require.Zero(t, again.Added)
	require.Equal(t, second.Digest, again.Digest)
	r := verifyExport(t, x.Dir, Options{Keys: w.keys})
	require.True(t, r.OK(), "%v", show(r))
	require.EqualValues(t, 23, r.Events)
}

func TestAnExportWritesIntoNothingElse(t *testing.T) {
	w := recorded(t)
	log := w.open()
	run := func(dir, id string) error {
		_, err := (&Export{Dir: dir, LogID: id, To: log.LastSeq, most: 5}).Run(t.Context(), log.Open)
		return err
	}
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(run(full, log.ID)))
	dir := t.TempDir()
	require.NoError(t, run(dir, log.ID))
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(run(dir, "another")))
	lock, err := lockDir(dir)
	require.NoError(t, err)
	require.Equal(t, fault.Conflict, fault.CodeOf(run(dir, log.ID)))
	require.NoError(t, lock.Close())
	b, err := os.ReadFile(segmentPath(dir, 5))
	require.NoError(t, err)
	b[len(b)-1] ^= 1
	require.NoError(t, os.WriteFile(segmentPath(dir, 5), b, 0o600))
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(run(dir, log.ID)))
}

func TestAnExportEndsWithItsContext(t *testing.T) {
	w := recorded(t)
	log := w.open()
	ctx, cancel := context.WithCancel(t.Context())
	x := Export{Dir: t.TempDir(), LogID: log.ID, To: log.LastSeq, most: 5, Progress: func(seq, _ uint64) {
		if seq == 10 {
			cancel()
		}
	}}
	_, err := x.Run(ctx, log.Open)
	if err != nil { // it may have read everything by then
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err = x.Run(t.Context(), log.Open)
	require.NoError(t, err)
	require.True(t, verifyExport(t, x.Dir, Options{Keys: w.keys}).OK())
}

func TestTamperingWithAnExportIsFoundWhereItIs(t *testing.T) {
	w := recorded(t)
	log := w.open()
	entries := w.entries()
	original := export(t, log.ID, log.LastSeq, entries)
	flip := func(at int) func(b []byte) []byte {
		return func(b []byte) []byte {
			b[(at+len(b))%len(b)] ^= 4
			return b
		}
	}
	change := func(name string, how func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), how(b), 0o600))
		}
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, n := range names {
				require.NoError(t, os.Remove(filepath.Join(dir, n)))
			}
		}
	}
	replace := func(old, by string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(by), 1) }
	}
	for name, c := range map[string]struct {
		do   func(*testing.T, string)
		kind Kind
		file string
		more []want
	}{
		"nothing":                   {func(*testing.T, string) {}, "", "", nil},
		"a bit of a segment":        {change(segmentName(2), flip(-9)), Segment, segmentName(2), nil},
		"a bit of a segment's head": {change(segmentName(2), flip(0)), Segment, segmentName(2), []want{{Removed, "", 6}}},
		"a segment cut off":         {change(segmentName(3), func(b []byte) []byte { return b[:len(b)/2] }), Segment, segmentName(3), nil},
		"a segment removed":         {remove(segmentName(3)), Segment, segmentName(3), []want{{Removed, "", 11}}},
		"a segment in place of another": {func(t *testing.T, dir string) {
			b, err := os.ReadFile(segmentPath(dir, 1))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(segmentPath(dir, 2), b, 0o600))
		}, Segment, segmentName(2), []want{{Reordered, "", 1}}},
		"a manifest removed":          {remove(manifestName(2)), Manifest, manifestName(2), nil},
		"a manifest's field":          {change(manifestName(2), replace(`"events": 5`, `"events": 4`)), Manifest, manifestName(3), nil},
		"a manifest of another log":   {change(manifestName(5), replace(log.ID, "b"+log.ID[1:])), Manifest, "", nil},
		"a manifest that is none":     {change(manifestName(4), func([]byte) []byte { return []byte("{") }), Manifest, manifestName(4), nil},
		"something behind a manifest": {change(manifestName(5), func(b []byte) []byte { return append(b, "{}"...) }), Manifest, manifestName(5), nil},
		"the last files removed":      {remove(segmentName(5), manifestName(5)), Truncated, "", []want{{Truncated, "", 21}}},
		"the plan removed":            {remove(planName), Manifest, planName, nil},
		"events put into a segment and all digests made anew": {func(t *testing.T, dir string) {
			mine := slices.Clone(entries)
			mine[6] = clone(mine[6])
			mine[6].Data[len(mine[6].Data)-1] ^= 1
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.CopyFS(dir, os.DirFS(export(t, log.ID, log.LastSeq, mine))))
		}, Altered, "", []want{{Altered, onA, 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "copy")
			require.NoError(t, os.CopyFS(dir, os.DirFS(original)))
			c.do(t, dir)
			r := verifyExport(t, dir, Options{Keys: w.keys})
			if c.kind == "" {
				require.True(t, r.OK(), "%v", show(r))
				return
			}
			require.True(t, slices.ContainsFunc(r.Findings, func(f *Finding) bool {
				return f.Kind == c.kind && (c.file == "" || f.File == c.file)
			}), "%v", show(r))
			if len(c.more) > 0 {
				hasAll(t, r, c.more)
			}
		})
	}
}

// What was imported is what was exported, up to when the server took it.
func TestImportThenVerifyIsEqual(t *testing.T) {
	w := recorded(t)
	log := w.open()
	dir := export(t, log.ID, log.LastSeq, w.entries())
	source := func() Source {
		s, err := OpenExport(dir, 1, nil)
		require.NoError(t, err)
		return s
	}
	empty := natstest.Start(t)
	n, err := Import{JS: empty.JS, Options: empty.Options}.Run(t.Context(), source())
	require.NoError(t, err)
	require.EqualValues(t, 23, n)
	there, err := OpenLog(t.Context(), empty.JS)
	require.NoError(t, err)
	s, err := there.Open(t.Context(), 1)
	require.NoError(t, err)
	want := verifyExport(t, dir, Options{Keys: w.keys})
	require.True(t, want.OK())
	require.Equal(t, want, verify(t, s, Options{Keys: w.keys, LastSeq: there.LastSeq}))

	_, err = Import{JS: empty.JS, Options: empty.Options}.Run(t.Context(), source())
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err), "it is not empty any more")
	require.ErrorContains(t, err, "EVT")
}

func TestOnlyAnEmptyServerTakesAnImport(t *testing.T) {
	w := recorded(t)
	entries := w.entries()
	for _, c := range []struct {
		name, on string
		entries  []Entry
		reason   fault.Reason
	}{
		{"a command waits", "cmd.sandbox.acme.s", entries, fault.ReasonIllegalState},
		{"a view stands", "$KV.sandbox.acme.s", entries, fault.ReasonIllegalState},
		{"the log has a hole", "", slices.Delete(slices.Clone(entries), 3, 4), fault.ReasonAuditDamaged},
		{"the log does not begin", "", entries[1:], fault.ReasonAuditDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := natstest.Start(t)
			if c.on != "" {
				_, err := f.JS.Publish(t.Context(), c.on, []byte("x"))
				require.NoError(t, err)
			}
			_, err := Import{JS: f.JS, Options: f.Options}.Run(t.Context(), &list{slices.Clone(c.entries)})
			require.Equal(t, c.reason, fault.From(err).Reason, "%v", err)
		})
	}
}
