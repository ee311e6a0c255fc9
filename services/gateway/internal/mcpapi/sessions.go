package mcpapi

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandtrail/sandtrail/libs/fault"
)

const (
	// maxSessions are open at once in one gateway, tenantSessions of one tenant, whose keys are as many as it likes, ownerSessions of one
	// credential.
	maxSessions, tenantSessions, ownerSessions = 1024, 256, 64
	// sessionIdle is after how long without a request a session ends.
	sessionIdle = 30 * time.Minute
	// sessionCalls of one session run at once.
	sessionCalls = 16
)

// errSessionEnded: the client ended the session, or did not come back to it.
var errSessionEnded = errors.New("the session has ended")

type sessionKey struct{}

// session is one conversation with a client of a protocol that has them. Only the credential that opened it may go on with it.
type session struct {
	id, owner string
	// box is the sandbox that it is about; empty: any.
	box       string
	transport *mcp.StreamableServerTransport
	slots     chan struct{}
	ctx       context.Context //nolint:containedctx // it is the session's life
	end       context.CancelCauseFunc

	// Guarded by the table: requests that are at work, and when the last one ended.
	requests int
	used     time.Time
}

// table holds the open sessions.
type table struct {
	mu   sync.Mutex
	all  map[string]*session
	now  func() time.Time
	idle time.Duration
	// most, tenant and each are maxSessions, tenantSessions and ownerSessions.
	most, tenant, each int
}

func newTable() *table {
	return &table{all: map[string]*session{}, now: time.Now, idle: sessionIdle, most: maxSessions, tenant: tenantSessions, each: ownerSessions}
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// tenantOf is what stands before the zero byte of an owner.
func tenantOf(owner string) string {
	tenant, _, _ := strings.Cut(owner, "\x00")
	return tenant
}

// open makes room for a session of an owner, a tenant and its credential with a zero byte between, and adds it, in use. An owner who has too
// many, or whose tenant has, loses the one that was idle for longest; where none of the owner's is idle, and where the gateway is full of
// others', it is refused. box is the sandbox that the session is about, empty for any.
func (t *table) open(owner, box string) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	mine, tenants, oldest := 0, 0, (*session)(nil)
	for _, s := range t.all {
		if tenantOf(s.owner) == tenantOf(owner) {
			tenants++
		}
		if s.owner != owner {
			continue
		}
		mine++
		if s.requests == 0 && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	if mine >= t.each || tenants >= t.tenant || len(t.all) >= t.most {
		if oldest == nil {
			return nil, fault.New(fault.Unavailable, fault.ReasonConflict, "too many sessions at once; try again").WithRetry(5 * time.Second)
		}
		t.drop(oldest)
	}
	ctx, end := context.WithCancelCause(context.Background())
	s := &session{id: rand.Text(), owner: owner, box: box, slots: make(chan struct{}, sessionCalls), ctx: ctx, end: end, requests: 1}
	s.transport = &mcp.StreamableServerTransport{SessionID: s.id}
	t.all[s.id] = s
	return s, nil
}

// use finds an owner's session and marks it as in use; nil where there is none of that id, or it is somebody else's or about another sandbox.
func (t *table) use(id, owner, box string) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	s := t.all[id]
	if s == nil || s.owner != owner || s.box != box {
		return nil
	}
	s.requests++
	return s
}

// leave ends a use.
func (t *table) leave(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.requests--
	s.used = t.now()
}

// close ends a session.
func (t *table) close(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(s)
}

// sweep ends the sessions that were idle for too long.
func (t *table) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
}

// clear ends all of them.
func (t *table) clear(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		s.end(cause)
		delete(t.all, s.id)
	}
}

func (t *table) expire() {
	for _, s := range t.all {
		if s.requests == 0 && t.now().Sub(s.used) > t.idle {
			t.drop(s)
		}
	}
}

func (t *table) drop(s *session) {
	s.end(errSessionEnded)
	delete(t.all, s.id)
}
