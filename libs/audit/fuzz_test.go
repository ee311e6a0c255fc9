package audit

import (
	"crypto/ed25519"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzReadSegment: what is read is written again as the same bytes; of damage what stands before it is whole.
func FuzzReadSegment(f *testing.F) {
	s := segment{most: 10}
	for i, e := range []Entry{
		{Subject: "evt.acme.sandbox.a", Seq: 1, Stored: 1 << 60, Headers: "NATS/1.0\r\nNats-Msg-Id: i\r\n\r\n", Data: []byte("data")},
		{Subject: "evt.acme.tenant", Seq: 1 << 40, Stored: -1},
	} {
		s.add(&e)
		f.Add(s.b[:len(s.b)-i])
		f.Add(s.b)
	}
	f.Add([]byte(segmentHead))
	f.Add([]byte(segmentHead + "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"))
	f.Add([]byte(segmentHead + "\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := readSegment(raw)
		again := segment{most: 1 << 20}
		for i := range all {
			require.LessOrEqual(t, len(all[i].Data), maxEntry)
			again.add(&all[i])
		}
		if err != nil || len(all) == 0 {
			return
		}
		back, err := readSegment(again.b)
		require.NoError(t, err)
		require.Equal(t, all, back)
	})
}

// FuzzDecompress: no file makes more memory than a segment has, or an end of the program.
func FuzzDecompress(f *testing.F) {
	zip, err := compressor()
	require.NoError(f, err)
	unzip, err := decompressor()
	require.NoError(f, err)
	f.Cleanup(unzip.Close)
	f.Add(zip.EncodeAll([]byte(segmentHead), nil))
	f.Add(zip.EncodeAll(make([]byte, 2*maxSegment), nil))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd})
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, err := unzip.DecodeAll(b, nil)
		if err == nil {
			require.LessOrEqual(t, len(raw), maxSegment)
		}
	})
}

// FuzzDecodeManifest: a manifest that is taken has possible values and is written again as one that says the same.
func FuzzDecodeManifest(f *testing.F) {
	sum := sumOf(nil)
	good, err := encodeJSON(manifest{Version: 1, LogID: "l", Number: 2, First: 3, Last: 4, Events: 2, Bytes: 5, SHA256: sum, Previous: sum})
	require.NoError(f, err)
	f.Add(good)
	f.Add(append(good, "{}"...))
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"log_id":"l","number":1,"first_sequence":5,"last_sequence":4}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, m.First, m.Last)
		require.Positive(t, m.Events)
		again, err := encodeJSON(m)
		require.NoError(t, err)
		back, err := decodeManifest(again)
		require.NoError(t, err)
		require.Equal(t, m, back)
	})
}

// key is the same in every run, so that what was found once is found again.
var fuzzKey = fileKey{ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}

func signedTree(f *testing.F, leaves int) (*tree, Checkpoint) {
	t := newTree()
	for i := range leaves {
		t.add(Leaf(uint64(i+1), "evt.acme.tenant", "d"), nil)
	}
	c, err := Sign(f.Context(), fuzzKey, Checkpoint{LogID: "l", Size: t.size(), Root: t.root(), Time: time.Unix(1, 0).UTC(), Range: t.hashes()})
	require.NoError(f, err)
	return t, c
}

// FuzzOpenNote: what is signed is what is read: a note that is taken has the one text that says the same.
func FuzzOpenNote(f *testing.F) {
	_, c := signedTree(f, 5)
	f.Add(c.Note)
	f.Add("")
	f.Add("sandtrail/log/l\n1\n\ntime x\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Open(text, Keys{fuzzKey.Public()})
		if err != nil {
			return
		}
		require.Equal(t, c.text(), got.text(), "nobody else has the key")
	})
}

// FuzzDecodeProof: nothing but what was proved is proved.
func FuzzDecodeProof(f *testing.F) {
	e := ProvenEvent{Subject: "evt.acme.tenant", Sequence: 1, ID: "i", Type: "t", Schema: "1", Tenant: "acme", Body: []byte("b")}
	sum, _ := e.head().Chain(nil, nil, e.Body)
	e.Digest = hex.EncodeToString(sum[:])
	t := newTree()
	t.add(Leaf(1, e.Subject, e.Digest), nil)
	t.add(Leaf(2, "x", "y"), nil)
	c, err := Sign(f.Context(), fuzzKey, Checkpoint{LogID: "l", Size: 2, Root: t.root(), Time: time.Unix(1, 0).UTC()})
	require.NoError(f, err)
	p := Proof{Version: 1, Event: e, Path: [][]byte{Leaf(2, "x", "y")}, Checkpoint: c.Note}
	_, err = p.Check(Keys{fuzzKey.Public()})
	require.NoError(f, err)
	good, err := p.Encode()
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"version":1,"path":[""],"checkpoint":""}`))
	f.Add(append(good, '{'))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := DecodeProof(b)
		if err != nil {
			require.ErrorIs(t, err, ErrProof)
			return
		}
		if proven, err := got.Check(Keys{fuzzKey.Public()}); err == nil {
			require.Equal(t, e, proven.Event)
		}
	})
}
