package certs

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/services/gateway/internal/certs/certstest"
)

// serial is that of the certificate which is shown now.
func (p *Pair) serial() int64 { return p.current.Load().Leaf.SerialNumber.Int64() }

// What cannot be shown is told once and changes nothing, and the next good pair is taken, however it got there.
func TestABrokenPairKeepsTheOne(t *testing.T) {
	year := time.Now().Add(365 * 24 * time.Hour)
	first, other := certstest.Make(t, 1, year), certstest.Make(t, 2, year)
	over := certstest.Make(t, 3, time.Now().Add(-time.Minute))
	dir := t.TempDir()
	cert, key := first.Into(t, dir)
	var logs bytes.Buffer
	p, err := New(cert, key, 0, slog.New(slog.NewTextHandler(&logs, nil)), prometheus.NewRegistry())
	require.NoError(t, err)
	p.look(t.Context())
	require.Empty(t, logs.String(), "nothing has changed")
	for name, spoil := range map[string]func(){
		"no certificate":           func() { require.NoError(t, os.Remove(cert)) },
		"no key":                   func() { require.NoError(t, os.Remove(key)) },
		"empty":                    func() { certstest.Made{}.Into(t, dir) },
		"half a certificate":       func() { certstest.Made{Cert: other.Cert[:len(other.Cert)/2], Key: other.Key}.Into(t, dir) },
		"another one's key":        func() { certstest.Made{Cert: other.Cert, Key: first.Key}.Into(t, dir) },
		"over":                     func() { over.Into(t, dir) },
		"more than is read":        func() { certstest.Made{Cert: bytes.Repeat([]byte("x"), maxFile+1), Key: other.Key}.Into(t, dir) },
		"the key before the other": func() { certstest.Made{Cert: first.Cert, Key: other.Key}.Into(t, dir) },
	} {
		logs.Reset()
		spoil()
		for range 3 {
			p.look(t.Context())
		}
		require.EqualValues(t, 1, p.serial(), name)
		require.Equal(t, 1, strings.Count(logs.String(), "not taken"), "%s: %s", name, logs.String())
		require.NotContains(t, logs.String(), "PRIVATE", name)
		first.Into(t, dir)
		p.look(t.Context())
		require.EqualValues(t, 1, p.serial(), name)
	}
	other.Into(t, dir)
	p.look(t.Context())
	require.EqualValues(t, 2, p.serial())
}

// A secret that is mounted changes by a link to another directory.
func TestAPairBehindALinkIsReadAgain(t *testing.T) {
	year := time.Now().Add(365 * 24 * time.Hour)
	dir := t.TempDir()
	for i, name := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		certstest.Make(t, int64(i+1), year).Into(t, filepath.Join(dir, name))
	}
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Symlink("a", data))
	p, err := New(filepath.Join(data, "tls.crt"), filepath.Join(data, "tls.key"), 0, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, os.Symlink("b", data+".new"))
	require.NoError(t, os.Rename(data+".new", data))
	p.look(t.Context())
	require.EqualValues(t, 2, p.serial())
}

func TestAPairThatIsBrokenAtTheStartIsAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := New(filepath.Join(dir, "none"), filepath.Join(dir, "none"), 0, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.ErrorIs(t, err, os.ErrNotExist)
	cert, key := certstest.Make(t, 1, time.Now().Add(-time.Minute)).Into(t, dir)
	_, err = New(cert, key, 0, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.ErrorContains(t, err, "over")
}
