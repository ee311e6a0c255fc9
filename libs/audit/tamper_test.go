package audit

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/natstest"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// want is one finding; "" and 0 are any.
type want struct {
	kind Kind
	on   string
	from uint64
}

const (
	onA = "evt.acme.sandbox.a"
	onB = "evt.acme.sandbox.b"
	onC = "evt.acme.sandbox.c"
)

// tampering is what somebody does to the log of recorded. kept is what shows in a copy that keeps the sequences, server what shows on a
// server, which numbers anew.
type tampering struct {
	name         string
	do           func(t *testing.T, w *world, all []Entry) []Entry
	kept, server []want
}

// on changes the entry at a sequence.
func on(seq uint64, change func(t *testing.T, e *Entry)) func(*testing.T, *world, []Entry) []Entry {
	return func(t *testing.T, _ *world, all []Entry) []Entry {
		change(t, &all[seq-1])
		return all
	}
}

func without(seqs ...uint64) func(*testing.T, *world, []Entry) []Entry {
	return func(_ *testing.T, _ *world, all []Entry) []Entry {
		return slices.DeleteFunc(all, func(e Entry) bool { return slices.Contains(seqs, e.Seq) })
	}
}

func setting(name, value string) func(*testing.T, *Entry) {
	return func(t *testing.T, e *Entry) {
		h := header(t, e)
		h.Set(name, value)
		setHeader(e, h)
	}
}

func flipped(_ *testing.T, e *Entry) { e.Data[len(e.Data)-1] ^= 1 }

// putIn puts an entry in front of the one at a sequence, and counts anew.
func putIn(seq uint64, what func(t *testing.T, all []Entry) Entry) func(*testing.T, *world, []Entry) []Entry {
	return func(t *testing.T, _ *world, all []Entry) []Entry {
		return renumber(slices.Insert(all, int(seq-1), what(t, all)))
	}
}

func tamperings() []tampering {
	same := func(name string, do func(*testing.T, *world, []Entry) []Entry, wants ...want) tampering {
		return tampering{name, do, wants, wants}
	}
	return []tampering{
		same("a bit of a body", on(7, flipped), want{Altered, onA, 7}),
		same("a bit of a first event's body", on(2, flipped), want{Altered, onB, 2}),
		same("a bit of a body that nothing signed covers", on(22, flipped), want{Broken, onB, 22}),
		same("who did it", on(14, setting(envelope.HeaderActor, "somebody")), want{Altered, onA, 14}),
		same("when it was", on(14, setting(envelope.HeaderTime, "2025-01-02T03:04:05Z")), want{Altered, onA, 14}),
		same("a digest", on(5, setting(envelope.HeaderDigest, strings.Repeat("ab", 32))), want{Altered, onB, 5}),
		same("whose it is", on(8, setting(envelope.HeaderTenant, "other")), want{Foreign, onB, 8}),
		same("no digest", on(8, setting(envelope.HeaderDigest, "")), want{Foreign, onB, 8}),

		{"an event removed", without(7), []want{{Removed, onA, 7}}, []want{{Removed, onA, 0}}},
		{"a first event removed", without(2), []want{{Removed, onB, 2}}, []want{{Removed, onB, 0}}},
		{"two events removed", without(7, 8), []want{{Removed, onA, 7}, {Removed, onB, 7}}, []want{{Removed, onA, 0}, {Removed, onB, 0}}},
		{"an aggregate's last event removed", without(23), nil, nil},
		{"an aggregate removed", without(3, 6, 9, 13, 16, 19, 23), []want{{Removed, "", 3}, {Removed, "", 6}}, []want{{Removed, "", 1}}},
		{"a checkpoint removed", without(10), []want{{Removed, "evt._none.log.*", 10}}, []want{{Removed, "evt._none.log.*", 0}}},

		same("an event put in, chained", putIn(7, func(t *testing.T, all []Entry) Entry {
			e := other(t, onA)
			chainAfter(t, &e, &all[3])
			return e
		}), want{Inserted, onA, 7}),
		same("an event put in, not chained", putIn(7, func(t *testing.T, _ []Entry) Entry { return other(t, onA) }), want{Inserted, onA, 7}),
		same("an event put in before the first, chained", putIn(2, func(t *testing.T, _ []Entry) Entry {
			e := other(t, onB)
			chainAfter(t, &e, nil)
			return e
		}), want{Inserted, onB, 2}),
		same("an aggregate put in", putIn(5, func(t *testing.T, _ []Entry) Entry {
			e := other(t, "evt.acme.sandbox.z")
			chainAfter(t, &e, nil)
			return e
		}), want{Diverged, "", 1}),
		same("an event repeated", putIn(8, func(_ *testing.T, all []Entry) Entry { return clone(all[3]) }), want{Inserted, onA, 8}),
		same("what is no event", putIn(8, func(*testing.T, []Entry) Entry { return Entry{Subject: onA, Data: []byte("hello")} }), want{Foreign, onA, 8}),

		same("two events of an aggregate in the wrong order", swap(7, 11), want{Reordered, onA, 7}),
		same("two events of two aggregates in the wrong order", swap(4, 5), want{Diverged, "", 1}),
		same("two events in the wrong order that nothing signed covers", swap(21, 23), nil...),
		same("an aggregate told anew", func(t *testing.T, _ *world, all []Entry) []Entry {
			all[3].Data = other(t, onA).Data
			chainAfter(t, &all[3], &all[0])
			chainAfter(t, &all[6], &all[3])
			chainAfter(t, &all[10], &all[6])
			chainAfter(t, &all[13], &all[10])
			chainAfter(t, &all[16], &all[13])
			chainAfter(t, &all[20], &all[16])
			return all
		}, want{Diverged, "", 1}),
		same("an aggregate under another name", func(_ *testing.T, _ *world, all []Entry) []Entry {
			for i := range all {
				if all[i].Subject == onC {
					all[i].Subject = "evt.acme.sandbox.y"
				}
			}
			return all
		}, want{Diverged, "", 1}),
	}
}

func swap(a, b uint64) func(*testing.T, *world, []Entry) []Entry {
	return func(_ *testing.T, _ *world, all []Entry) []Entry {
		all[a-1], all[b-1] = all[b-1], all[a-1]
		return renumber(all)
	}
}

func hasAll(t *testing.T, r Report, wants []want) {
	t.Helper()
	for _, w := range wants {
		require.True(t, slices.ContainsFunc(r.Findings, func(f *Finding) bool {
			name, prefix := strings.CutSuffix(w.on, "*")
			return f.Kind == w.kind && (w.on == f.Subject || prefix && strings.HasPrefix(f.Subject, name) || w.on == "") && (w.from == 0 || f.From == w.from)
		}), "%+v is not among %v", w, show(r))
	}
	if len(wants) == 0 {
		require.True(t, r.OK(), "%v", show(r))
	}
}

func show(r Report) (all []Finding) {
	for _, f := range r.Findings {
		all = append(all, *f)
	}
	return all
}

func TestEachKindOfTamperingIsFoundWhereItIs(t *testing.T) {
	w := recorded(t)
	entries := w.entries()
	r := verify(t, &list{slices.Clone(entries)}, Options{Keys: w.keys})
	require.True(t, r.OK(), "%v", show(r))
	require.EqualValues(t, 23, r.Events)
	require.EqualValues(t, 2, r.Checkpoints)
	require.EqualValues(t, 19, r.SignedTo)
	require.EqualValues(t, 4, r.Unsigned)
	require.EqualValues(t, 4, r.Aggregates)
	id := w.open().ID
	copied := natstest.Start(t)
	for _, c := range tamperings() {
		t.Run(c.name, func(t *testing.T) {
			var mine []Entry
			for _, e := range entries {
				mine = append(mine, clone(e))
			}
			mine = c.do(t, w, mine)
			t.Run("in an export", func(t *testing.T) {
				dir := export(t, id, mine[len(mine)-1].Seq, mine)
				hasAll(t, verifyExport(t, dir, Options{Keys: w.keys}), c.kept)
			})
			t.Run("on a server", func(t *testing.T) {
				log, ok := rewrite(t, copied, mine)
				if !ok {
					return // the server takes no id twice, so this cannot be done there
				}
				s, err := log.Open(t.Context(), 1)
				require.NoError(t, err)
				hasAll(t, verify(t, s, Options{Keys: w.keys, LastSeq: log.LastSeq}), c.server)
			})
		})
	}
}

// What nobody has signed and the chain does not cover shows with what was kept elsewhere.
func TestWhatWasSignedMustStayWhatItWas(t *testing.T) {
	w := recorded(t)
	whole := w.entries()
	old := slices.Clone(whole[:15])
	newest := whole[19]
	kept, err := OpenEvent(&newest, w.keys)
	require.NoError(t, err)
	strange, strangeKeys := newKey(t)

	for name, c := range map[string]struct {
		entries []Entry
		o       Options
		want    []want
	}{
		"whole":                   {whole, Options{Keys: w.keys, Known: []Checkpoint{kept}}, nil},
		"rolled back":             {old, Options{Keys: w.keys, Known: []Checkpoint{kept}}, []want{{Truncated, "", 16}}},
		"rolled back, unnoticed":  {old, Options{Keys: w.keys}, nil},
		"the end cut off":         {whole[:22], Options{Keys: w.keys, LastSeq: 23}, []want{{Truncated, "", 23}}},
		"no checkpoint left":      {renumber(withoutCheckpoints(whole)), Options{Keys: w.keys}, []want{{Unsigned, "", 1}}},
		"another key":             {whole, Options{Keys: strangeKeys}, []want{{Forged, "evt._none.log.*", 10}, {Forged, "evt._none.log.*", 20}, {Unsigned, "", 1}}},
		"both keys":               {whole, Options{Keys: append(slices.Clone(strangeKeys), w.keys...)}, nil},
		"no key":                  {whole, Options{}, nil},
		"signed anew by somebody": {signedBy(t, w, strange), Options{Keys: w.keys}, []want{{Forged, "evt._none.log.*", 10}, {Forged, "evt._none.log.*", 20}}},
		"forked":                  {forked(t, w), Options{Keys: w.keys, Known: []Checkpoint{kept}}, []want{{Forked, "", 1}}},
		"a checkpoint of another log": {
			append(slices.Clone(whole), foreignCheckpoint(t, w)), Options{Keys: w.keys}, []want{{Forged, "evt._none.log.*", 24}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mine []Entry
			for _, e := range c.entries {
				mine = append(mine, clone(e))
			}
			r := verify(t, &list{mine}, c.o)
			hasAll(t, r, c.want)
		})
	}
}

func withoutCheckpoints(all []Entry) (rest []Entry) {
	for _, e := range all {
		if !isCheckpoint(e.Subject) {
			rest = append(rest, clone(e))
		}
	}
	return rest
}

// signedBy is the log with the same checkpoints signed by somebody else, chained.
func signedBy(t *testing.T, w *world, s Signer) []Entry {
	var all []Entry
	var before *Entry
	for _, e := range w.entries() {
		if isCheckpoint(e.Subject) {
			c, err := OpenEvent(&e, nil)
			require.NoError(t, err)
			c, err = Sign(t.Context(), s, c)
			require.NoError(t, err)
			e.Data, err = proto.Marshal(c.Event())
			require.NoError(t, err)
			chainAfter(t, &e, before)
			kept := e
			before = &kept
		}
		all = append(all, e)
	}
	return all
}

// forked is another history that the same key has signed: the same beginning, then other events.
func forked(t *testing.T, w *world) []Entry {
	other := newWorld(t)
	other.key = w.key
	other.boxes = other.boxes[:2]
	other.live(6)
	other.sign()
	other.live(6)
	other.sign()
	return other.entries()
}

// foreignCheckpoint is one that the same key has signed of another log, under the name of this one.
func foreignCheckpoint(t *testing.T, w *world) Entry {
	other := newWorld(t)
	other.key = w.key
	other.live(7)
	other.sign()
	e := other.entries()[21]
	e.Seq = 24
	var body eventsv1.LogSigned
	require.NoError(t, proto.Unmarshal(e.Data, &body))
	require.NotEqual(t, w.open().ID, body.GetLogId())
	return e
}

// However few leaves wait, what was signed is compared, and a hole that is longer than that is one hole.
func TestAHoleMayBeLongerThanWhatWaits(t *testing.T) {
	w := recorded(t)
	entries := w.entries()
	run := func(late uint64, entries []Entry) Report {
		v := NewVerifier(Options{Keys: w.keys})
		defer v.Close()
		v.late = late
		r, err := Verify(t.Context(), &list{slices.Clone(entries)}, v)
		require.NoError(t, err)
		return r
	}
	for _, late := range []uint64{0, 1, 2, 5, 100} {
		r := run(late, entries)
		require.True(t, r.OK(), "%d: %v", late, show(r))
		require.EqualValues(t, 2, r.Checkpoints)
	}
	for _, late := range []uint64{3, 100} {
		r := run(late, slices.Delete(slices.Clone(entries), 2, 8))
		hasAll(t, r, []want{{Removed, onA, 3}})
		require.Equal(t, map[Kind]int{Removed: 3}, r.Total, "%v", show(r))
		require.EqualValues(t, 1, r.Checkpoints, "the tree goes on from what was signed")
	}
}
