// Package natsserver runs a NATS server with JetStream inside this process: all of NATS that a single host needs, and what
// the tests of every other package run against.
package natsserver

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/permission"
)

// Defaults and bounds of a server.
const (
	// DefaultMaxPayload bounds a message, headers included, in bytes. NATS itself defaults to half of it.
	DefaultMaxPayload = 2 << 20
	// DefaultMaxStore bounds what all streams together may reserve on disk, in bytes. Reserved is not allocated.
	DefaultMaxStore = 256 << 30
	// DefaultMaxMemory bounds what memory streams may reserve, in bytes.
	DefaultMaxMemory = 256 << 20

	maxConnections   = 8192
	maxSubscriptions = 65536 // of one connection
	writeDeadline    = 10 * time.Second
	readyTimeout     = 30 * time.Second

	// blockExt is that of files of messages, which are flushed every Options.SyncInterval.
	blockExt = ".blk"
)

// Options of a server. Only Dir is required.
type Options struct {
	// Dir is where streams are stored; it is made when absent, and one server at a time may use it.
	Dir string
	// Host to listen on, by default 127.0.0.1.
	Host string
	// Port to listen on; -1 takes a free one, 0 listens nowhere: connections in this process only.
	Port int
	// Name of the server, unique in its cluster. By default a random one.
	Name string
	// Token is asked of every connection; "" asks for none, and then whoever reaches the port may do everything.
	Token string
	// Users may connect, each with its nkey, and do what its rules say; nobody else may then. Empty: see Token.
	Users []permission.User
	// SyncInterval is how often streams are flushed to the disk; 0 leaves the server's two minutes. What was acknowledged since
	// the last flush outlives a crash of the process but not one of the machine. The flushes are of messages only: call Flush
	// once streams and consumers are made or changed.
	SyncInterval time.Duration
	// SyncAlways flushes before every acknowledgement.
	SyncAlways bool
	// MaxPayload in bytes, by default DefaultMaxPayload.
	MaxPayload int32
	// MaxStore and MaxMemory bound what streams may reserve, in bytes, by default DefaultMaxStore and DefaultMaxMemory.
	MaxStore, MaxMemory int64
	// Cluster joins other servers; nil for a single one.
	Cluster *Cluster
	// Log gets the server's messages; never what clients send. nil discards them.
	Log *slog.Logger
}

// Cluster is how a server meets its peers.
type Cluster struct {
	Name string
	// Host and Port for the other servers; Host is by default 127.0.0.1.
	Host string
	Port int
	// Routes are nats://host:port of every server of the cluster; this one may be among them.
	Routes []string
	// Advertise is the host:port at which servers that learn of this one from others reach it, where that is not Host and Port.
	Advertise string
	// NoAdvertise keeps the servers' addresses from clients: they use those they were given, and no way around a proxy.
	NoAdvertise bool
}

// Server is a running server.
type Server struct {
	ns    *server.Server
	dir   string
	token string
	// crashed: see Crashed.
	crashed bool
	lock    *os.File
	once    sync.Once
	watch   watch
	// flusher is nil where the server itself flushes.
	flusher *flusher
}

// Start starts a server and returns when it takes connections and JetStream works; in a cluster JetStream still has to elect
// its leader then. It fails when the port or the directory is in use, or when it is not ready after 30 s.
func Start(o Options) (*Server, error) {
	if o.Dir == "" {
		return nil, errors.New("start nats server: no directory for its streams")
	}
	so, err := o.server()
	if err != nil {
		return nil, fmt.Errorf("start nats server: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start nats server: %w", err)
	}
	crashed, err := begin(o.Dir)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start nats server: %w", err)
	}
	ns, err := server.NewServer(so)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start nats server: %w", err)
	}
	log := newLogger(o.Log)
	ns.SetLoggerV2(log, false, false, false)
	s := &Server{ns: ns, dir: o.Dir, token: o.Token, crashed: crashed, lock: lock, watch: watch{stop: make(chan struct{})}}
	if o.flushed() {
		s.flusher = newFlusher(o.Dir, o.SyncInterval)
	}
	if err := s.run(so, log); err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("start nats server: %w", err)
	}
	return s, nil
}

// flushed reports whether a flusher flushes messages, not the server.
func (o Options) flushed() bool {
	return o.SyncInterval > 0 && o.SyncInterval < serverSyncs && !o.SyncAlways
}

// run starts it and waits until it is ready or has said what is wrong.
func (s *Server) run(so *server.Options, log *logger) error {
	// The server goes on after a port in use, without the listener: what it calls fatal ends the start here.
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.ns.Start()
	}()
	deadline := time.After(readyTimeout)
	select {
	case <-started:
	case err := <-log.fatal:
		return describe(so, err)
	case <-deadline:
		return fmt.Errorf("not ready after %s", readyTimeout)
	}
	ready := make(chan bool, 1)
	go func() { ready <- s.ns.ReadyForConnections(readyTimeout) }()
	select {
	case ok := <-ready:
		if !ok {
			return fmt.Errorf("not ready after %s", readyTimeout)
		}
	case err := <-log.fatal:
		return describe(so, err)
	}
	select {
	case err := <-log.fatal:
		return describe(so, err)
	default:
	}
	if !s.ns.JetStreamEnabled() {
		return errors.New("JetStream did not start")
	}
	return nil
}

// describe makes the usual failure, a port in use, readable.
func describe(so *server.Options, err error) error {
	for _, hp := range [][2]any{{so.Host, so.Port}, {so.Cluster.Host, so.Cluster.Port}} {
		host, port := hp[0].(string), hp[1].(int)
		if port <= 0 || (so.DontListen && host == so.Host && port == so.Port) {
			continue
		}
		addr := net.JoinHostPort(host, strconv.Itoa(port))
		l, lerr := net.Listen("tcp", addr)
		if errors.Is(lerr, syscall.EADDRINUSE) {
			return fmt.Errorf("%s is in use by another program: %w", addr, lerr)
		}
		if lerr == nil {
			_ = l.Close()
		}
	}
	return err
}

func (o Options) server() (*server.Options, error) {
	syncs := o.SyncInterval
	if o.flushed() {
		syncs = serverSyncs
	}
	so := &server.Options{
		ServerName:             o.Name,
		Host:                   orDefault(o.Host, "127.0.0.1"),
		Port:                   o.Port,
		DontListen:             o.Port == 0,
		Authorization:          o.Token,
		JetStream:              true,
		StoreDir:               o.Dir,
		SyncInterval:           syncs,
		SyncAlways:             o.SyncAlways,
		JetStreamMaxStore:      orDefault(o.MaxStore, DefaultMaxStore),
		JetStreamMaxMemory:     orDefault(o.MaxMemory, DefaultMaxMemory),
		MaxPayload:             orDefault(o.MaxPayload, DefaultMaxPayload),
		MaxConn:                maxConnections,
		MaxSubs:                maxSubscriptions,
		WriteDeadline:          writeDeadline,
		NoSigs:                 true,
		DisableJetStreamBanner: true,
	}
	for _, u := range o.Users {
		so.Nkeys = append(so.Nkeys, &server.NkeyUser{Nkey: u.Nkey, Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: u.Publish, Deny: u.Deny},
			Subscribe: &server.SubjectPermission{Allow: u.Subscribe},
		}})
	}
	if c := o.Cluster; c != nil {
		so.Cluster = server.ClusterOpts{
			Name: c.Name, Host: orDefault(c.Host, "127.0.0.1"), Port: c.Port, PoolSize: -1, Advertise: c.Advertise, NoAdvertise: c.NoAdvertise,
		}
		for _, r := range c.Routes {
			u, err := url.Parse(r)
			if err != nil {
				return nil, fmt.Errorf("route: %w", err)
			}
			so.Routes = append(so.Routes, u)
		}
	}
	return so, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// lockDir makes sure that no second server writes to the same streams, which would corrupt them.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("stream directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "sandtrail.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock stream directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is in use by another server", dir)
		}
		return nil, fmt.Errorf("lock stream directory: %w", err)
	}
	return f, nil
}

// Connect connects without a socket, with the token. The connection survives no restart of the server.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	own := []nats.Option{nats.InProcessServer(s)}
	if s.token != "" {
		own = append(own, nats.Token(s.token))
	}
	nc, err := nats.Connect("", append(own, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the nats server of this process: %w", err)
	}
	return nc, nil
}

// InProcessConn is one end of a new connection whose other end is the server; it makes Server a nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// URL is where it listens, "" when nowhere.
func (s *Server) URL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Port is the one it listens on, 0 when on none.
func (s *Server) Port() int {
	if a, ok := s.ns.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// Leading reports whether it leads the cluster's JetStream; always for a single server.
func (s *Server) Leading() bool { return s.ns.JetStreamIsLeader() }

// Flush writes the definitions of streams and consumers to the disk. The server never does unless every write is flushed: a log
// that lost power soon after it was made would be gone with all that had been flushed into it.
func (s *Server) Flush() error {
	return filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && filepath.Ext(path) == blockExt:
			return nil
		case err != nil:
			return fmt.Errorf("flush the stream directory: %w", err)
		case !d.IsDir() && !d.Type().IsRegular():
			return nil
		}
		if err := syncFile(path); err != nil {
			return fmt.Errorf("flush the stream directory: %w", err)
		}
		return nil
	})
}

// Shutdown stops it and waits until everything is on disk and every goroutine has ended. Calling it again does nothing.
func (s *Server) Shutdown() {
	s.once.Do(func() {
		close(s.watch.stop)
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		if s.flusher != nil {
			s.flusher.end()
		}
		_ = os.Remove(filepath.Join(s.dir, bootFile)) // one that stays costs a rebuild after the next boot
		_ = s.lock.Close()
	})
}
