package envelope

import (
	"crypto/sha256"
	"strconv"
)

// Chain is what Digest gives for a message with this head and data. scratch is memory to work in, which is returned for the next
// call: whoever checks millions of events allocates nothing for each.
func (h *Head) Chain(scratch, previous, data []byte) (sum [sha256.Size]byte, _ []byte) {
	b := scratch[:0]
	b = append(b, previous...)
	// In the order of chained.
	for _, v := range [...]string{h.ID, h.Type, h.Schema, h.Tenant, h.Actor, h.Cause, h.Correlation, h.Time} {
		b = append(strconv.AppendInt(b, int64(len(v)), 10), ':')
		b = append(b, v...)
	}
	b = append(strconv.AppendInt(b, int64(len(data)), 10), ':')
	b = append(b, data...)
	return sha256.Sum256(b), b
}
