package edge

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// Messages answers one request of a protocol whose answers may be streams of events, as serve does: no longer than WriteTime for a client
// that does not read, and with a sign of life at each heartbeat. ctx is the call's; body is that of a POST, which was read before. It returns
// serve's error, where nothing was answered.
func (a *Reply) Messages(ctx context.Context, r *http.Request, body []byte, heartbeat time.Duration, serve func(http.ResponseWriter, *http.Request) error) error {
	to := r.WithContext(ctx)
	if r.Method == http.MethodPost {
		// The end of the credential ends what a tool calls, and the answer that says so must still get out.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(r.Context(), cancel)()
		to = r.WithContext(ctx)
		to.Body = io.NopCloser(bytes.NewReader(body))
	}
	w := newStreamed(a.w, heartbeat)
	defer w.stop()
	err := serve(w, to)
	a.Status = w.answered()
	return err
}

// streamed bounds how long a client may take to read, and breaks the silence of a stream of events, so that no proxy takes it for dead.
type streamed struct {
	w         http.ResponseWriter
	rc        *http.ResponseController
	heartbeat time.Duration
	own       http.Header
	done      chan struct{}
	over      sync.WaitGroup

	mu     sync.Mutex
	status int
	last   time.Time
}

func newStreamed(w http.ResponseWriter, heartbeat time.Duration) *streamed {
	s := &streamed{w: w, rc: http.NewResponseController(w), heartbeat: heartbeat, own: w.Header().Clone(), done: make(chan struct{}), last: time.Now()}
	s.over.Go(s.beat)
	return s
}

// stop ends the beats, before the request does.
func (w *streamed) stop() {
	close(w.done)
	w.over.Wait()
}

func (w *streamed) answered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Header is not the one that is sent: a beat may send that meanwhile.
func (w *streamed) Header() http.Header { return w.own }

func (w *streamed) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head(status)
}

func (w *streamed) head(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	to := w.w.Header()
	clear(to)
	for name, values := range w.own {
		to[name] = values
	}
	w.w.WriteHeader(status)
}

func (w *streamed) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head(http.StatusOK)
	w.last = time.Now()
	_ = w.rc.SetWriteDeadline(w.last.Add(WriteTime)) // one that cannot be set does not bound, and the write fails by itself
	return w.w.Write(b)
}

// FlushError is what http.ResponseController calls.
func (w *streamed) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head(http.StatusOK)
	return w.rc.Flush()
}

func (w *streamed) beat() {
	tick := time.NewTicker(w.heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.done:
			return
		}
		if w.comment() != nil {
			return // the client is gone
		}
	}
}

// comment writes what says nothing, where nothing else was written for some time. What was silent for so long is a stream of events: every
// other answer is there at once.
func (w *streamed) comment() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.last) < w.heartbeat/2 {
		return nil
	}
	if w.status == 0 {
		w.status = http.StatusOK
		w.w.Header().Set("Content-Type", "text/event-stream")
		w.w.WriteHeader(http.StatusOK)
	}
	w.last = time.Now()
	_ = w.rc.SetWriteDeadline(w.last.Add(WriteTime))
	if _, err := w.w.Write([]byte(":\n\n")); err != nil {
		return err
	}
	return w.rc.Flush()
}
