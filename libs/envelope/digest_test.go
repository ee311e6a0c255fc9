package envelope_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/envelope"
)

// Two ways of one promise: whoever appends and whoever checks make the same digest.
func TestDigestOfAHeadIsThatOfItsHeaders(t *testing.T) {
	names := []string{
		envelope.HeaderID, envelope.HeaderType, envelope.HeaderSchema, envelope.HeaderTenant, envelope.HeaderActor, envelope.HeaderCause,
		envelope.HeaderCorrelation, envelope.HeaderTime, envelope.HeaderDigest, envelope.HeaderTraceparent, envelope.HeaderTracestate,
	}
	var scratch []byte
	rapid.Check(t, func(t *rapid.T) {
		h := nats.Header{}
		for _, name := range names {
			if rapid.Bool().Draw(t, "there") {
				h.Set(name, rapid.String().Draw(t, name))
			}
		}
		previous, data := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "previous"), rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "data")
		head := envelope.HeadOf(h)
		var sum [32]byte
		sum, scratch = head.Chain(scratch, previous, data)
		if want := envelope.Digest(previous, h, data); string(want) != string(sum[:]) {
			t.Fatalf("%x, want %x", sum, want)
		}
	})
}
