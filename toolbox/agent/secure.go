package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

// handshakes are how many callers may be proving themselves at once. One more is cut off: those who hold them up cannot be told from
// those who mean it, and a caller tries again.
const handshakes = 64

// serverTLS asks for a certificate that one of the authorities signed. The agent's own is made here and known by its key.
func serverTLS(name string, authorities []byte) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, errors.New("the certificates of callers cannot be read")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		// A ticket is sent behind the handshake: a connection with nothing to read would not look silent.
		SessionTicketsDisabled: true,
	}, nil
}

// secured hands out connections whose callers have proved who they are. Until then they count against handshakes and against
// nothing else, so that a program of the sandbox cannot take the places of those who may call.
type secured struct {
	net.Listener
	config  *tls.Config
	local   bool
	ready   chan net.Conn
	slots   chan struct{}
	closing sync.Once
	closed  chan struct{}
	// failed is set before closed closes where Accept of the listener failed.
	failed error
}

func secure(l net.Listener, config *tls.Config, local bool) net.Listener {
	s := &secured{
		Listener: l, config: config, local: local,
		ready: make(chan net.Conn), slots: make(chan struct{}, handshakes), closed: make(chan struct{}),
	}
	go s.accept()
	return s
}

func (s *secured) accept() {
	for {
		conn, err := s.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			s.closing.Do(func() { s.failed = err; close(s.closed) })
			return
		case err != nil:
			// Descriptors have run out; that passes.
			select {
			case <-s.closed:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
			go func() {
				defer func() { <-s.slots }()
				s.admit(conn)
			}()
		default:
			conn.Close()
		}
	}
}

func (s *secured) admit(conn net.Conn) {
	if !s.local && own(conn) {
		conn.Close()
		return
	}
	caller := tls.Server(conn, s.config)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	if caller.HandshakeContext(ctx) != nil {
		conn.Close()
		return
	}
	select {
	case s.ready <- caller:
	case <-s.closed:
		conn.Close()
	}
}

// own reports whether both ends of a connection are on this host, where only programs of the sandbox are.
func own(conn net.Conn) bool {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return true
	}
	local, ok := conn.LocalAddr().(*net.TCPAddr)
	return !ok || remote.IP.IsLoopback() || remote.IP.Equal(local.IP)
}

// Accept implements net.Listener.
func (s *secured) Accept() (net.Conn, error) {
	select {
	case conn := <-s.ready:
		return conn, nil
	case <-s.closed:
		if s.failed != nil {
			return nil, s.failed
		}
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *secured) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return s.Listener.Close()
}
