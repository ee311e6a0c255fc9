package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Link is one way between two parts of the system, through a proxy. Its address is its own: the proxy behind it is replaced when it hangs,
// which toxiproxy does now and then when a toxic is changed while a connection's other end does not read.
type Link struct {
	// From and To name its ends: a service, a NATS node, "client", "clickhouse".
	From, To string

	server *toxiproxy.ApiServer
	addr   string
	to     string

	mu    sync.Mutex
	cut   bool
	proxy *toxiproxy.Proxy
	front *front
}

// Name tells links apart.
func (l *Link) Name() string { return l.From + ">" + l.To }

// Addr is where From connects to.
func (l *Link) Addr() string { return l.addr }

// proxies are the links of a rig.
type proxies struct {
	server *toxiproxy.ApiServer
	all    []*Link
}

func newProxies() *proxies {
	// Some of it logs past the logger that it is given.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	return &proxies{server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
}

func (p *proxies) open(from, to, upstream string) (*Link, error) {
	l := &Link{From: from, To: to, to: upstream, server: p.server}
	// Somebody else may take the port between the look and the use.
	for attempt := 0; ; attempt++ {
		err := l.open()
		if err == nil {
			p.all = append(p.all, l)
			return l, nil
		}
		if attempt == openAttempts {
			return nil, fmt.Errorf("open link %s: %w", l.Name(), err)
		}
	}
}

const openAttempts = 10

func (l *Link) open() error {
	if err := l.renew(); err != nil {
		return err
	}
	addr, err := freePort()
	if err != nil {
		return err
	}
	l.addr = addr
	l.front, err = listen(addr, l.proxy.Listen)
	return err
}

// renew puts a new proxy in place of the link's.
func (l *Link) renew() error {
	addr, err := freePort()
	if err != nil {
		return err
	}
	l.proxy = toxiproxy.NewProxy(l.server, l.Name(), addr, l.to)
	return l.proxy.Start()
}

// Cut closes its connections and takes no new ones until Restore.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.cut = true
		l.front.close()
	}
}

// Restore takes connections again.
func (l *Link) Restore() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		return nil
	}
	return l.restore()
}

func (l *Link) restore() error {
	f, err := listen(l.addr, l.proxy.Listen)
	if err != nil {
		return fmt.Errorf("restore link %s: %w", l.Name(), err)
	}
	l.front, l.cut = f, false
	return nil
}

// change has the proxy do what may hang. Then its connections are cut, and another proxy, without toxics, takes its place.
func (l *Link) change(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(hangs):
	}
	if err := l.renew(); err != nil {
		return fmt.Errorf("renew link %s: %w", l.Name(), err)
	}
	if l.cut {
		return nil
	}
	l.front.close()
	return l.restore()
}

// hangs is when a change of a proxy's toxics counts as one that never ends. It takes microseconds otherwise, or as long as the toxics
// that it ends delay what is on its way.
const hangs = 3 * time.Second

// Direction of what flows on a link.
type Direction string

// Up is what From sends, Down what it gets.
const (
	Up   Direction = "upstream"
	Down Direction = "downstream"
)

// Toxic makes a link worse: a kind of toxiproxy with its attributes. Latencies are in milliseconds, sizes in bytes.
type Toxic struct {
	Type       string         `json:"type"`
	Name       string         `json:"name"`
	Stream     Direction      `json:"stream"`
	Toxicity   float32        `json:"toxicity"`
	Attributes map[string]any `json:"attributes"`
}

// Add puts a toxic on the link, on connections that exist and on later ones.
func (l *Link) Add(t Toxic) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Name, t.Toxicity = t.Type+"_"+string(t.Stream), 1
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	toxics := l.proxy.Toxics
	return l.change(func() error {
		if _, err := toxics.AddToxicJson(bytes.NewReader(body)); err != nil {
			return fmt.Errorf("put %s on link %s: %w", t.Name, l.Name(), err)
		}
		return nil
	})
}

// Clean takes every toxic away.
func (l *Link) Clean(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	toxics := l.proxy.Toxics
	return l.change(func() error {
		toxics.ResetToxics(ctx)
		return nil
	})
}

func (p *proxies) close() {
	for _, l := range p.all {
		l.Cut()
	}
}

// Ports of the rig lie below those that the kernel gives to outgoing connections: one that is closed for a while, by a fault, must not be
// somebody else's when it opens again.
const firstPort, lastPort = 20000, 32000

var ports struct {
	sync.Mutex
	next int
}

// freePort is host:port on loopback that nobody listens on; it gives none twice.
func freePort() (string, error) {
	ports.Lock()
	defer ports.Unlock()
	for range lastPort - firstPort {
		if ports.next == 0 || ports.next >= lastPort {
			ports.next = firstPort + rand.IntN(lastPort-firstPort)
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports.next))
		ports.next++
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}
