package feed

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/directget"
)

// What the server says beside messages.
const (
	headerStatus          = "Status"
	headerDescription     = "Description"
	headerPendingMessages = "Nats-Pending-Messages"

	statusBeat     = "100"
	statusTimeout  = "408"
	statusConflict = "409"
	tooLarge       = "Message Size Exceeds MaxBytes"
)

// request asks a consumer for messages.
type request struct {
	Expires  time.Duration `json:"expires"`
	Batch    int           `json:"batch"`
	MaxBytes int           `json:"max_bytes"`
	Beats    time.Duration `json:"idle_heartbeat"`
}

// ask asks for messages while less than half of the window is on its way.
func (f *Feed) ask() error {
	for f.messages <= half {
		body, err := json.Marshal(request{Expires: expires, Batch: half, MaxBytes: f.o.Window / 2, Beats: beats})
		if err != nil {
			return fmt.Errorf("ask for messages: %w", err)
		}
		err = f.nc.PublishRequest(directget.API(f.js, "CONSUMER.MSG.NEXT."+f.o.Stream+"."+f.name), f.inbox, body)
		if errors.Is(err, nats.ErrConnectionClosed) && !f.js.Conn().IsClosed() {
			// The feed's own connection ends with each restart of a server, that of js does not: readers end for good with that only.
			return fmt.Errorf("%w: the connection was lost", ErrGap)
		}
		if err != nil {
			return fmt.Errorf("ask for messages: %w", err)
		}
		f.messages += half
	}
	return nil
}

// said takes what the server says beside messages: a beat, or that a request is over and how many messages it has left.
func (f *Feed) said(m *nats.Msg) error {
	f.heard = time.Now()
	h := Message{parsed: m.Header}
	_, h.block, _ = headers(m)
	head := h.Header()
	status, left := head.Get(headerStatus), head.Get(headerPendingMessages)
	if status == statusBeat {
		return nil
	}
	rest, err := strconv.Atoi(left)
	if err != nil || (status != statusTimeout && status != statusConflict) {
		return fmt.Errorf("%w: %s %s", ErrEnded, status, head.Get(headerDescription))
	}
	// The next message does not fit into what the request has left of its bytes: for one that has all of them it never will.
	if head.Get(headerDescription) == tooLarge && rest == half {
		return fmt.Errorf("%w: a message is larger than half of the window of %d bytes", ErrEnded, f.o.Window)
	}
	f.messages -= rest
	return f.ask()
}

// numbered is a message with its sequence among those of the consumer.
type numbered struct {
	Message
	delivered uint64
}

// parse reads a message's place from its reply subject:
//
//	$JS.ACK.<stream>.<consumer>.<tries>.<stream sequence>.<consumer sequence>.<time>.<left>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<tries>.<stream sequence>.<consumer sequence>.<time>.<left>.<token>
//
// false: it is none but something the server says. It allocates nothing.
func parse(m *nats.Msg) (numbered, bool) {
	const short, long = 9, 11
	var at [long + 2]int // where each token begins
	n := 1
	for i := range len(m.Reply) {
		if m.Reply[i] != '.' {
			continue
		}
		if n == len(at) {
			return numbered{}, false
		}
		at[n] = i + 1
		n++
	}
	first := 5 // where the numbers begin
	switch {
	case n < short || len(m.Reply) < 8 || m.Reply[:8] != "$JS.ACK.":
		return numbered{}, false
	case n >= long:
		first = 7
	case n != short:
		return numbered{}, false
	}
	var v [4]uint64
	for i := range v {
		begin, end := at[first+i], len(m.Reply)
		if first+i+1 < n {
			end = at[first+i+1] - 1
		}
		var ok bool
		if v[i], ok = number(m.Reply[begin:end]); !ok {
			return numbered{}, false
		}
	}
	place := numbered{Message: Message{Seq: v[0], Stored: int64(v[2]), Left: v[3], parsed: m.Header}, delivered: v[1]} //nolint:gosec // a time
	place.Subject, place.block, place.Data = headers(m)
	return place, true
}

// number reads a decimal number.
func number(s string) (n uint64, ok bool) {
	if s == "" || len(s) > 20 {
		return 0, false
	}
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return n, true
}
