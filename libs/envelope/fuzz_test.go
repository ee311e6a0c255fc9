package envelope_test

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
)

// FuzzReadHead: a block of headers says to us what it says to the client.
func FuzzReadHead(f *testing.F) {
	for _, block := range []string{
		"", "NATS/1.0\r\n\r\n", "NATS/1.0\r\nNats-Msg-Id: i\r\nSandtrail-Type:t\r\n\r\n", "NATS/1.0 404 No Messages\r\n\r\n", "NATS/1.0\nNats-Msg-Id: i\n\n",
		"NATS/1.0\r\nSandtrail-Digest: ff\r\nSandtrail-Digest: 00\r\nSandtrail-Time: \t2026\r\ntraceparent: p\r\n\r\n", "NATS/1.0\r\n: i\r\n\r\n",
	} {
		f.Add(block)
	}
	f.Fuzz(func(t *testing.T, block string) {
		require.Equal(t, headOf(block), envelope.ReadHead(block))
	})
}

// FuzzDecode: a message is refused, or it is an event that is written again as it was: the same headers, body and digest.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("../../proto/corpus/v1/*.binpb")
	require.NoError(f, err)
	require.NotEmpty(f, files)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC).Format(time.RFC3339Nano)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		// NAME.binpb, or NAME+FIELDS.binpb of a later version.
		name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".binpb"), "+")
		f.Add("id", "sandtrail.events.v1."+name, "1", at, strings.Repeat("ab", 32), data)
	}
	f.Add("id", "sandtrail.events.v9.Imagined", "2", at, "", []byte("anything"))
	f.Add("", "", "", "", "x", []byte{0xff})
	f.Add("id", "google.protobuf.Any", "1", at, "", []byte{0x0a, 0x01, 'x'})
	f.Fuzz(func(t *testing.T, id, typ, schema, when, digest string, data []byte) {
		h := nats.Header{
			envelope.HeaderID: {id}, envelope.HeaderType: {typ}, envelope.HeaderSchema: {schema}, envelope.HeaderTime: {when}, envelope.HeaderDigest: {digest},
		}
		r, err := envelope.Decode("evt.acme.sandbox.s", 1, h, data)
		if err != nil {
			require.Nil(t, r.Body, "what is refused is not half taken")
			return
		}
		require.NotEmpty(t, r.ID)
		require.True(t, strings.EqualFold(digest, hex.EncodeToString(r.Digest)))
		if r.Body == nil || r.Schema == 0 {
			return
		}
		m, sum, err := envelope.Encode(r.Subject, envelope.Event{Meta: r.Meta, Body: r.Body}, nil)
		require.NoError(t, err)
		again, err := envelope.Decode(m.Subject, 1, m.Header, m.Data)
		require.NoError(t, err)
		require.Equal(t, sum, again.Digest)
		require.Equal(t, sum, envelope.Digest(nil, m.Header, m.Data))
		require.Equal(t, r.ID, again.ID)
		require.Equal(t, r.Type, again.Type)
		require.Equal(t, r.Schema, again.Schema)
		require.True(t, r.Time.Equal(again.Time), "%s %s", r.Time, again.Time)
	})
}
