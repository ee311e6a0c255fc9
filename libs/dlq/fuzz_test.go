package dlq

import (
	"errors"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// FuzzLetter: whatever stands in the stream of dead letters can be shown, decided about and recorded, within bounds.
func FuzzLetter(f *testing.F) {
	f.Add("exec", "c", "poison", "3", "EVT", "7", "evt.acme.sandbox.s", "id", "a sentence", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "", []byte("x"))
	f.Add("", "", "", "-1", "", "-1", "\xff", "\xff", "a\r\nb", "noon", "", "-5", []byte{})
	f.Add("a.b", ">", "x", "99999999999999999999", "CMD", "18446744073709551615", "cmd.sandbox.acme", "", "", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "7", []byte{0xff})
	f.Fuzz(func(t *testing.T, service, consumer, reason, attempts, stream, seq, subj, id, text, at, died, omitted string, data []byte) {
		h := nats.Header{}
		for k, v := range map[string]string{
			headerService: service, headerConsumer: consumer, headerReason: reason, headerAttempts: attempts, headerStream: stream, headerSeq: seq,
			headerSubject: subj, headerMessageID: id, headerError: text, headerStored: at, headerDied: died, headerOmitted: omitted,
		} {
			h.Set(k, v)
		}
		l := letter(1, h, data)
		require.GreaterOrEqual(t, l.Omitted, 0)
		require.NoError(t, l.Aggregate().Validate())
		_ = l.Redriveable()
		body, err := proto.Marshal(l.fact())
		require.NoError(t, err)
		require.Less(t, len(body), eventlog.MaxEventSize/2)

		// What is written into headers is read as it was written, as far as it is text of one line.
		again := nats.Header{}
		l.put(again)
		require.Equal(t, l.LetterID(), parse(again).LetterID(), "%q", again)
	})
}

// FuzzExplain: what is said of a failure is short, one line, text, and never what the error quotes.
func FuzzExplain(f *testing.F) {
	f.Add("cannot be read", "hunter2hunter2")
	f.Add("a\nb\xff", "\xff\x00")
	f.Fuzz(func(t *testing.T, sentence, secret string) {
		for _, err := range []error{
			errors.New(secret), fault.New(fault.Internal, fault.ReasonInternal, sentence).Because(errors.New(secret)), Undecodable(sentence, errors.New(secret)),
			&time.ParseError{Layout: secret, Value: secret, Message: secret},
		} {
			_, _, says := Explain(err)
			require.LessOrEqual(t, len(says), maxSentence)
			require.True(t, utf8.ValidString(says))
			require.NotContains(t, says, "\n")
			if len(secret) > 12 && len(sentence) < len(secret) {
				require.NotContains(t, says, secret)
			}
		}
	})
}
