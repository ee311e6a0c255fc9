package edge

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// Body is how the body of a call is read: whole, into memory.
type Body struct {
	// Most bytes of it, in at most that much Time.
	Most int64
	Time time.Duration
	// Memory counts it until it is released.
	Memory stored.Share
}

// Read gives the body, and what to call once it is not needed any more, whatever the error is. Errors are faults: TooLarge, Busy, Malformed.
//
// Where the body does not end, the deadline stays: the server reads on behind the answer, and would wait for a sender who has stopped.
func (b Body) Read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(b.Time)) // one that cannot be set does not bound; the server's own does
	if r.ContentLength > b.Most {
		Drain(r)
		return nil, func() {}, TooLarge(b.Most)
	}
	body, held, err := Gather(http.MaxBytesReader(w, r.Body, b.Most), b.Most, r.ContentLength, b.Memory)
	release = func() { b.Memory.Give(held) }
	var over *http.MaxBytesError
	var busy *fault.Error
	switch {
	case errors.As(err, &over):
		Drain(r)
		return nil, release, TooLarge(b.Most)
	case errors.As(err, &busy):
		return nil, release, busy
	case err != nil:
		return nil, release, Malformed("the end of the body did not come")
	}
	_ = rc.SetReadDeadline(time.Time{})
	return body, release, nil
}

// firstPart is what is set aside for a body before any of it is there, in bytes.
const firstPart = 4 << 10

// Gather reads r to its end, or until it has more than most bytes. announced is how many are said to come; negative: none are. Memory is
// taken as they come in, not as they are announced: who stops half way holds little. held has to be given back, whatever the error is: Busy,
// or r's own.
func Gather(r io.Reader, most, announced int64, memory stored.Share) (body []byte, held int, err error) {
	enough := int(most) + 1
	if announced >= 0 && announced < most {
		enough = int(announced) + 1 // one more, in which the end shows
	}
	for {
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return body, held, nil
			}
			more := min(max(firstPart, cap(body)), enough-cap(body))
			if more <= 0 {
				more = firstPart
			}
			if !memory.Take(more) {
				return nil, held, Busy()
			}
			held += more
			grown := make([]byte, len(body), len(body)+more)
			copy(grown, body)
			body = grown
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, held, nil
		case err != nil:
			return nil, held, err
		}
	}
}

// Drain reads what a client sends of a body that is refused, so that it comes to read why. One that asked first is told at once.
func Drain(r *http.Request) {
	if r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, r.Body, maxDrain) // the refusal stands whatever comes
	}
}

// maxDrain bounds that; who sends more finds the connection closed.
const maxDrain = 64 << 20
