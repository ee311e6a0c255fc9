package audit

import (
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// call is a record as a gateway makes it, and its digest.
func call(t *testing.T, chain, tenant string, number int, previous []byte) (directget.Message, []byte) {
	t.Helper()
	m, digest, err := envelope.Encode(subject.Call(tenant), envelope.Event{
		Meta: envelope.Meta{ID: fmt.Sprintf("%s.%d", chain, number), Tenant: tenant, Time: began},
		Body: &eventsv1.CallEnded{TenantId: tenant, Action: "GetExec", DurationUs: uint64(number)}, //nolint:gosec // a small number
	}, previous)
	require.NoError(t, err)
	return directget.Message{Subject: m.Subject, Header: m.Header, Data: m.Data}, digest
}

// called is a stream in which two gateways have written of two tenants, n records each.
func called(t *testing.T, n int) (all []directget.Message) {
	t.Helper()
	digests := map[string][]byte{}
	for i := 1; i <= n; i++ {
		for _, chain := range []string{"g1", "g2"} {
			for _, tenant := range []string{"acme", "globex"} {
				m, digest := call(t, chain, tenant, i, digests[chain+tenant])
				digests[chain+tenant] = digest
				all = append(all, m)
			}
		}
	}
	return all
}

// checked numbers messages as their stream would and gives what is found in them.
func checked(t *testing.T, all []directget.Message) CallsReport {
	t.Helper()
	c := NewCalls()
	for i, m := range all {
		m.Seq = uint64(i + 1) //nolint:gosec // not negative
		require.NoError(t, c.Add(m))
	}
	return c.Report()
}

// retold is a message with other data, or headers.
func retold(m directget.Message, change func(h nats.Header, data []byte) []byte) directget.Message {
	h := nats.Header{}
	for name, values := range m.Header {
		h[name] = slices.Clone(values)
	}
	m.Data = change(h, slices.Clone(m.Data))
	m.Header = h
	return m
}

func TestRecordsOfCallsShowWhatWasDoneToThem(t *testing.T) {
	flip := func(_ nats.Header, data []byte) []byte {
		data[len(data)-1] ^= 1
		return data
	}
	for name, c := range map[string]struct {
		change func(all []directget.Message) []directget.Message
		want   map[Kind]int
	}{
		"as they were written": {func(all []directget.Message) []directget.Message { return all }, nil},
		"the oldest let go":    {func(all []directget.Message) []directget.Message { return all[7:] }, nil},
		"the end cut off":      {func(all []directget.Message) []directget.Message { return all[:7] }, nil},
		"stored again":         {func(all []directget.Message) []directget.Message { return slices.Insert(all, 30, all[8]) }, nil},
		"stored in another order": {func(all []directget.Message) []directget.Message {
			all[8], all[20] = all[20], all[8]
			return all
		}, nil},
		"one taken out": {func(all []directget.Message) []directget.Message { return slices.Delete(all, 8, 9) }, map[Kind]int{Removed: 1}},
		"two of one chain taken out, apart": {func(all []directget.Message) []directget.Message {
			return slices.Delete(slices.Delete(all, 20, 21), 8, 9)
		}, map[Kind]int{Removed: 2}},
		"altered": {func(all []directget.Message) []directget.Message {
			all[8] = retold(all[8], flip)
			return all
		}, map[Kind]int{Broken: 1}},
		"altered, with a digest that fits": {func(all []directget.Message) []directget.Message {
			before, err := hex.DecodeString(all[4].Header.Get(envelope.HeaderDigest))
			require.NoError(t, err)
			all[8] = retold(all[8], func(h nats.Header, data []byte) []byte {
				data = flip(h, data)
				h.Set(envelope.HeaderDigest, hex.EncodeToString(envelope.Digest(before, h, data)))
				return data
			})
			return all
		}, map[Kind]int{Broken: 1}},
		"another one with its number": {func(all []directget.Message) []directget.Message {
			return slices.Insert(all, 30, retold(all[8], flip))
		}, map[Kind]int{Inserted: 1}},
		"no digest": {func(all []directget.Message) []directget.Message {
			all[8] = retold(all[8], func(h nats.Header, data []byte) []byte {
				h.Del(envelope.HeaderDigest)
				return data
			})
			return all
		}, map[Kind]int{Foreign: 1, Removed: 1}},
		"given to another tenant": {func(all []directget.Message) []directget.Message {
			all[8].Subject = subject.Call("other")
			return all
		}, map[Kind]int{Foreign: 1, Removed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := checked(t, c.change(called(t, 10)))
			require.Equal(t, c.want, r.Total, "%v", r.Findings)
			require.Equal(t, c.want == nil, r.OK())
		})
	}
}

// What waits for a record that does not come is bounded, and found out while reading on.
func TestAGapIsFoundBeforeTheEnd(t *testing.T) {
	all := called(t, 3*maxAhead)
	all = slices.Delete(all, 8, 9)
	c := NewCalls()
	for i, m := range all {
		m.Seq = uint64(i + 1) //nolint:gosec // not negative
		require.NoError(t, c.Add(m))
		for _, chain := range c.chains {
			require.LessOrEqual(t, len(chain.ahead), maxAhead)
		}
	}
	require.Equal(t, map[Kind]int{Removed: 1}, c.found.total)
	r := c.Report()
	require.Equal(t, map[Kind]int{Removed: 1}, r.Total)
	require.EqualValues(t, 4, r.Chains)
	require.EqualValues(t, len(all), r.Records)
}
