package mcpapi

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// often is how soon new output is told, seldom how soon a client hears of a command that is silent.
	often, seldom = 500 * time.Millisecond, 10 * time.Second
	// newsBytes is the most of new output that one notification has: its end.
	newsBytes = 4 << 10
)

// progress tells a client that asked for it how a command goes on.
type progress struct {
	mu sync.Mutex
	// news is output that was not told yet, skipped how much of it is left out.
	news    []byte
	skipped bool
	done    chan struct{}
	over    sync.WaitGroup
}

// newProgress begins to tell. Where nobody asked it does nothing.
func newProgress(c *call) *progress {
	p := &progress{done: make(chan struct{})}
	if token := c.req.Params.GetProgressToken(); token != nil {
		p.over.Go(func() { p.run(c, token) })
	}
	return p
}

// stop waits until nothing more is told: the answer comes last.
func (p *progress) stop() {
	close(p.done)
	p.over.Wait()
}

func (p *progress) add(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.news = append(p.news, data...)
	if over := len(p.news) - newsBytes; over > newsBytes {
		p.news, p.skipped = append(p.news[:0], p.news[over:]...), true
	}
}

func (p *progress) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	news, skipped := p.news[max(0, len(p.news)-newsBytes):], p.skipped || len(p.news) > newsBytes
	keep := cutRune(news)
	text := strings.ToValidUTF8(string(news[:len(news)-keep]), "\uFFFD")
	p.news, p.skipped = append([]byte(nil), news[len(news)-keep:]...), false
	if skipped {
		text = "…" + text
	}
	return text
}

func (p *progress) run(c *call, token any) {
	begun, last := time.Now(), time.Now()
	tick := time.NewTicker(often)
	defer tick.Stop()
	// A client that does not take what it is told must not hold the command's end back for ever.
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	for {
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text := p.take()
		if text == "" && time.Since(last) < seldom {
			continue
		}
		last = time.Now()
		err := c.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: time.Since(begun).Seconds(), Message: text,
		})
		if err != nil {
			return // nobody is there any more
		}
	}
}
