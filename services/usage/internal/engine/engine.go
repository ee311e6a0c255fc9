// Package engine runs a real ClickHouse server without an installation: as a child process of the program that hosts it, on
// loopback only. The library it loads is libchdb, whose entry point `clickhouse local` can serve.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Default ports, those of every ClickHouse.
const (
	DefaultNative = 9000
	DefaultHTTP   = 8123
)

// Options of an engine.
type Options struct {
	// Library is what Prepare returned.
	Library string
	// Dir holds the data; one engine at a time may have it.
	Dir string
	// Native and HTTP are the ports. 0: one that is free. Negative: the default port if that is free, otherwise any.
	Native, HTTP int
	// LockWait is how long to wait for the end of another engine on Dir, by default 3 s: one whose parent was killed goes
	// within that time.
	LockWait time.Duration
	// Users are further users, by name. Their password is that of URL.
	Users map[string]User
	Log   *slog.Logger
}

// User is a user who may do less than everything.
type User struct {
	// Grants are what it is granted, such as "SELECT ON agents.*".
	Grants []string
	// Policies are the rows that it sees of tables of the database agents, as conditions by table; all of the others.
	Policies map[string]string
}

const (
	startPatience = time.Minute
	// A client that keeps a connection open holds the engine's end up for 5 s. Killing it is safe: what an insert wrote is on
	// disk when the insert returns.
	stopPatience = 2 * time.Second
	// A child that lived for healthyAfter starts the backoff anew.
	healthyAfter = time.Minute
	backoffMin   = 100 * time.Millisecond
	backoffMax   = 10 * time.Second
)

// Engine is a running ClickHouse. When its process dies it is started again on the same ports, with a growing pause of up to
// 10 s between attempts, until Close.
type Engine struct {
	options  Options
	password string
	front    *front
	lock     *os.File

	stop    context.CancelFunc
	stopped chan struct{}

	mu       sync.Mutex
	restarts int
}

// Start starts the engine and returns once it answers. It lives until Close, or until this process dies.
// fault.FailedPrecondition: another engine has the directory.
func Start(ctx context.Context, o Options) (*Engine, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	o.Dir = dir
	if o.LockWait == 0 {
		o.LockWait = 3 * time.Second
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := lockFile(ctx, filepath.Join(dir, "lock"), o.LockWait)
	if errors.Is(err, errLocked) {
		return nil, fault.Newf(fault.FailedPrecondition, fault.ReasonConflict,
			"another ClickHouse uses %s: stop it, or choose another state directory", dir).Because(err)
	}
	if err != nil {
		return nil, err
	}
	front, err := newFront(o.Native, o.HTTP)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	secret := make([]byte, 16)
	_, _ = rand.Read(secret)
	e := &Engine{options: o, password: hex.EncodeToString(secret), front: front, lock: lock, stopped: make(chan struct{})}
	c, err := e.launch(ctx)
	if err != nil {
		front.close()
		_ = lock.Close()
		return nil, err
	}
	if err := e.publish(); err != nil {
		front.close()
		c.end(0)
		_ = lock.Close()
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	go e.supervise(run, c)
	return e, nil
}

// URL is the address for the native protocol, with the user that may do everything. It holds a password: never log it.
func (e *Engine) URL() string { return e.As(adminUser) }

// As is URL for another user.
func (e *Engine) As(user string) string {
	return fmt.Sprintf("clickhouse://%s:%s@127.0.0.1:%d/default", user, e.password, e.front.ports().Native)
}

// AddressFile is the file in the data directory that holds URL while the engine lives, for those who may read the directory: its owner.
const AddressFile = "address"

// publish writes the address file.
func (e *Engine) publish() error {
	path := filepath.Join(e.options.Dir, AddressFile)
	if err := os.WriteFile(path+".new", []byte(e.URL()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the engine's address: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the engine's address: %w", err)
	}
	return nil
}

// HTTP is the address to show to people: user default, who may read the views and needs no password.
func (e *Engine) HTTP() string { return fmt.Sprintf("http://127.0.0.1:%d", e.front.ports().HTTP) }

// Native is the host and port of the native protocol.
func (e *Engine) Native() string { return fmt.Sprintf("127.0.0.1:%d", e.front.ports().Native) }

// Restarts is how often the process was started again.
func (e *Engine) Restarts() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restarts
}

// Close ends the engine in order, or by force after 2 s, and returns when it has ended.
func (e *Engine) Close() {
	e.stop()
	<-e.stopped
	_ = os.Remove(filepath.Join(e.options.Dir, AddressFile))
	_ = e.lock.Close()
}

// supervise starts the process again whenever it has died.
func (e *Engine) supervise(ctx context.Context, c *child) {
	defer close(e.stopped)
	defer e.front.close()
	pause, since := backoffMin, time.Now()
	for {
		if c != nil {
			select {
			case <-ctx.Done():
				e.front.close()
				c.end(stopPatience)
				return
			case <-c.done:
			}
			e.front.engine.Store(nil)
			e.options.Log.Error("ClickHouse died, starting it again", "error", c.failure())
			if time.Since(since) > healthyAfter {
				pause = backoffMin
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + mathrand.N(pause)):
		}
		pause = min(2*pause, backoffMax)
		next, err := e.launch(ctx)
		if err != nil {
			if ctx.Err() == nil {
				e.options.Log.Error("ClickHouse does not start", "error", err)
			}
			c = nil
			continue
		}
		c, since = next, time.Now()
		e.mu.Lock()
		e.restarts++
		e.mu.Unlock()
	}
}

// launch starts one process on the engine's ports and waits until it serves.
func (e *Engine) launch(ctx context.Context) (*child, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	cfg := childConfig{
		Library: e.options.Library, Dir: e.options.Dir, Ready: filepath.Join(e.options.Dir, "ready.json"),
		AdminPassword: e.password, Users: e.options.Users,
	}
	if err := os.Remove(cfg.Ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old ready file: %w", err)
	}
	c, err := startChild(cfg, e.lock)
	if err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx, cfg.Ready); err != nil {
		c.end(0)
		return nil, err
	}
	e.front.engine.Store(&c.ports)
	return c, nil
}
