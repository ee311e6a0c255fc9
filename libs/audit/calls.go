package audit

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
)

const (
	// maxCallChains bounds what one check holds: a chain is one gateway's for one tenant, between two starts of the gateway.
	maxCallChains = 1 << 20
	// maxAhead is how many records of a chain may come before one that is missing: as many as a gateway has under way, twice.
	maxAhead = 512
	// maxRecent is how many records are remembered, to know one that was stored again.
	maxRecent = 1 << 16
)

// Calls checks records of calls, which are not of the log: what one gateway writes of one tenant is a chain, like an aggregate's. It tells of
// records that were altered, put in, or taken out between others. Nothing is signed: a chain whose end is cut off, or that is gone as a
// whole, does not show, and the oldest are let go by the stream itself.
type Calls struct {
	found  findings
	chains map[string]*callChain
	// recent tells the last records, by subject and id, from others of their ids; order are its keys as they came.
	recent  map[string][32]byte
	order   []string
	r       CallsReport
	scratch []byte
}

// CallsReport is what a check of records has found.
type CallsReport struct {
	Records uint64 `json:"records"`
	Chains  uint64 `json:"chains"`
	// LastSeq is the sequence of the last record.
	LastSeq uint64 `json:"last_sequence"`
	// Findings are the first MaxFindings of all, which Total counts by kind.
	Findings []*Finding   `json:"findings"`
	Total    map[Kind]int `json:"total"`
}

// OK reports whether nothing is wrong.
func (r CallsReport) OK() bool { return len(r.Total) == 0 }

// callChain is how far a chain was checked.
type callChain struct {
	subject string
	// first is the number that it begins with here, next that of the record to come.
	first, next uint64
	// digest is that of the record before it, of no meaning unless known.
	digest []byte
	known  bool
	// ahead are records behind one that has not come, by number.
	ahead map[uint64]callRecord
}

type callRecord struct {
	seq    uint64
	head   envelope.Head
	data   []byte
	digest []byte
}

// NewCalls begins a check.
func NewCalls() *Calls {
	return &Calls{chains: map[string]*callChain{}, recent: map[string][32]byte{}}
}

// Add takes the next record, in the order of the stream. An error: there are more chains than one check holds.
func (c *Calls) Add(m directget.Message) error {
	c.r.Records++
	c.r.LastSeq = m.Seq
	x := callRecord{seq: m.Seq, head: envelope.HeadOf(m.Header), data: m.Data}
	at := strings.LastIndexByte(x.head.ID, '.')
	number, err := strconv.ParseUint(x.head.ID[at+1:], 10, 64)
	digest, derr := hex.DecodeString(x.head.Digest)
	if at < 0 || err != nil || number == 0 || derr != nil || len(digest) != 32 || x.head.Type == "" {
		c.found.add(Finding{Foreign, m.Subject, m.Seq, m.Seq, "", "it is no record: no id, number, type or digest"})
		return nil
	}
	if tenantOf(m.Subject) != x.head.Tenant {
		c.found.add(Finding{Foreign, m.Subject, m.Seq, m.Seq, "", "its tenant is not that of its subject"})
	}
	x.digest = digest
	if c.again(m.Subject, x) {
		return nil
	}
	key := m.Subject + " " + x.head.ID[:at] // the same id elsewhere is another chain
	chain := c.chains[key]
	if chain == nil {
		if len(c.chains) >= maxCallChains {
			return fmt.Errorf("the records have more than %d chains; check those of one tenant", maxCallChains)
		}
		chain = &callChain{subject: m.Subject, first: number, next: number, known: number == 1}
		c.chains[key] = chain
	}
	c.take(chain, number, x)
	return nil
}

// again reports whether a record is one that came a moment ago: a gateway that got no answer sends it once more.
func (c *Calls) again(subject string, x callRecord) bool {
	key := subject + " " + x.head.ID
	var all [32]byte
	all, c.scratch = x.head.Chain(c.scratch, x.digest, x.data)
	if seen, ok := c.recent[key]; ok && seen == all {
		return true
	}
	if len(c.order) >= maxRecent {
		delete(c.recent, c.order[0])
		c.order = c.order[1:]
	}
	c.recent[key] = all
	c.order = append(c.order, key)
	return false
}

func (c *Calls) take(chain *callChain, number uint64, x callRecord) {
	switch {
	case number < chain.first:
		// One that was sent again, behind the first one that is kept of its chain.
	case number < chain.next:
		c.found.add(Finding{Inserted, chain.subject, x.seq, x.seq, "", "its chain has another record with this number"})
	case number == chain.next:
		c.check(chain, x)
		c.catchUp(chain)
	default:
		if chain.ahead == nil {
			chain.ahead = map[uint64]callRecord{}
		}
		if _, ok := chain.ahead[number]; ok {
			c.found.add(Finding{Inserted, chain.subject, x.seq, x.seq, "", "its chain has another record with this number"})
			return
		}
		chain.ahead[number] = x
		if len(chain.ahead) > maxAhead {
			c.skip(chain)
		}
	}
}

// check compares a record with the one before it.
func (c *Calls) check(chain *callChain, x callRecord) {
	if chain.known {
		previous := chain.digest
		if chain.next == 1 {
			previous = nil
		}
		var sum [32]byte
		sum, c.scratch = x.head.Chain(c.scratch, previous, x.data)
		if !bytes.Equal(sum[:], x.digest) {
			c.found.add(Finding{Broken, chain.subject, x.seq, x.seq, "", "it does not follow from the record before it in its chain: one of them was altered"})
		}
	}
	chain.digest, chain.known = x.digest, true
	chain.next++
}

func (c *Calls) catchUp(chain *callChain) {
	for {
		x, ok := chain.ahead[chain.next]
		if !ok {
			return
		}
		delete(chain.ahead, chain.next)
		c.check(chain, x)
	}
}

// skip gives up the records that a chain waits for.
func (c *Calls) skip(chain *callChain) {
	least := uint64(0)
	for number := range chain.ahead {
		if least == 0 || number < least {
			least = number
		}
	}
	c.found.add(Finding{
		Removed, chain.subject, chain.ahead[least].seq, chain.ahead[least].seq, "",
		fmt.Sprintf("%d records of its chain before it are not there", least-chain.next),
	})
	chain.next, chain.known = least, false
	c.catchUp(chain)
}

// Report ends the check.
func (c *Calls) Report() CallsReport {
	for _, chain := range c.chains {
		for len(chain.ahead) > 0 {
			c.skip(chain)
		}
	}
	c.r.Chains = uint64(len(c.chains))
	c.r.Findings, c.r.Total = c.found.list, c.found.total
	slices.SortStableFunc(c.r.Findings, func(a, b *Finding) int { return compare(a.From, b.From) })
	return c.r
}
