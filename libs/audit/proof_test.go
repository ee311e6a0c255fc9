package audit

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/transparency-dev/merkle/rfc6962"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/fault"
)

func TestEveryEventThatWasSignedCanBeProved(t *testing.T) {
	w := recorded(t)
	log := w.open()
	dir := export(t, log.ID, log.LastSeq, w.entries())
	for from, open := range map[string]Opener{"server": log.Open, "export": FromExport(dir, nil)} {
		t.Run(from, func(t *testing.T) {
			for seq := uint64(1); seq <= 19; seq++ {
				p, err := Prove(t.Context(), open, seq, w.keys)
				require.NoError(t, err, "event %d", seq)
				b, err := p.Encode()
				require.NoError(t, err)
				again, err := DecodeProof(b)
				require.NoError(t, err)
				got, err := again.Check(w.keys)
				require.NoError(t, err)
				require.Equal(t, seq, got.Event.Sequence)
				require.NotEmpty(t, got.Checkpoint.Key)
			}
			_, err := Prove(t.Context(), open, 22, w.keys)
			require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err), "nothing covers it yet")
			_, err = Prove(t.Context(), open, 99, w.keys)
			require.Equal(t, fault.NotFound, fault.CodeOf(err))
		})
	}
	_, strange := newKey(t)
	_, err := Prove(t.Context(), log.Open, 3, strange)
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err), "nothing that this key has signed covers it")
}

// Whatever is changed of a proof, it holds no more.
func TestAProofThatWasChangedDoesNotHold(t *testing.T) {
	w := recorded(t)
	p, err := Prove(t.Context(), w.open().Open, 14, w.keys)
	require.NoError(t, err)
	other, err := Prove(t.Context(), w.open().Open, 3, w.keys)
	require.NoError(t, err)
	_, strange := newKey(t)
	for name, c := range map[string]struct {
		change func(p *Proof)
		err    error
	}{
		"the body":                       {func(p *Proof) { p.Event.Body = append(slices.Clone(p.Event.Body), 1) }, ErrContent},
		"the actor":                      {func(p *Proof) { p.Event.Actor = "somebody" }, ErrContent},
		"the time":                       {func(p *Proof) { p.Event.Time = "2020-01-01T00:00:00Z" }, ErrContent},
		"the tenant":                     {func(p *Proof) { p.Event.Tenant = "other" }, ErrContent},
		"the digest before":              {func(p *Proof) { p.Previous = nil }, ErrContent},
		"the digest":                     {func(p *Proof) { p.Event.Digest = other.Event.Digest }, ErrContent},
		"the subject":                    {func(p *Proof) { p.Event.Subject = "evt.acme.sandbox.z" }, ErrInclusion},
		"the subject's tenant":           {func(p *Proof) { p.Event.Subject = "evt.other.sandbox.a" }, ErrContent},
		"the sequence":                   {func(p *Proof) { p.Event.Sequence = 15 }, ErrInclusion},
		"a sequence beyond":              {func(p *Proof) { p.Event.Sequence = 99 }, ErrInclusion},
		"a sequence of none":             {func(p *Proof) { p.Event.Sequence = 0 }, ErrProof},
		"the path":                       {func(p *Proof) { p.Path = slices.Clone(p.Path); p.Path[0] = p.Path[1] }, ErrInclusion},
		"a path too short":               {func(p *Proof) { p.Path = p.Path[1:] }, ErrInclusion},
		"a path far too long":            {func(p *Proof) { p.Path = make([][]byte, 100) }, ErrProof},
		"a checkpoint of a smaller tree": {func(p *Proof) { p.Checkpoint = other.Checkpoint }, ErrInclusion},
		"the version":                    {func(p *Proof) { p.Version = 2 }, ErrProof},
		"the checkpoint's text":          {func(p *Proof) { b := []byte(p.Checkpoint); b[len(origin)+40]++; p.Checkpoint = string(b) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			mine := p
			c.change(&mine)
			_, err := mine.Check(w.keys)
			require.Error(t, err)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
			}
		})
	}
	_, err = p.Check(strange)
	require.ErrorIs(t, err, ErrSignature)
	_, err = p.Check(w.keys)
	require.NoError(t, err)
}

func TestChildrenAreThoseOfRFC6962(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "l"), rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "r")
		if string(children(l, r)) != string(rfc6962.DefaultHasher.HashChildren(l, r)) {
			t.Fatal("another hash")
		}
	})
	require.Equal(t, rfc6962.DefaultHasher.EmptyRoot(), newTree().root())
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys", "audit.pem")
	first, err := LoadSigner(path)
	require.NoError(t, err)
	again, err := LoadSigner(path)
	require.NoError(t, err)
	require.Equal(t, first.Public(), again.Public())
	public, err := LoadPublic(path + ".pub")
	require.NoError(t, err)
	require.Equal(t, first.Public(), public)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	_, err = LoadPublic(path)
	require.Error(t, err, "a private key is no public one")
	_, err = LoadSigner(path + ".pub")
	require.Error(t, err, "a public key is no private one, and others can read it")
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = LoadSigner(path)
	require.ErrorContains(t, err, "0600")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "junk"), []byte("hello"), 0o600))
	_, err = LoadSigner(filepath.Join(dir, "junk"))
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hello")
}
