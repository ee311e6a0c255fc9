package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// connectTimeout bounds a connection to an agent with its handshake: an address whose host is gone does not answer at all.
const connectTimeout = 10 * time.Second

// Agent says where an agent is and which one is meant.
type Agent struct {
	// Address is host:port.
	Address string
	// Name and UID are those that the cluster gave it.
	Name, UID string
	// KeySHA256 is the digest of its public key; empty: any key will do.
	KeySHA256 []byte
}

// Credentials prove to agents that a caller may call them.
type Credentials struct {
	certFile, keyFile string
}

// LoadCredentials reads a certificate and its key, both PEM. They are read again for each connection, so that they can be renewed
// while the caller runs.
func LoadCredentials(certFile, keyFile string) (*Credentials, error) {
	c := &Credentials{certFile: certFile, keyFile: keyFile}
	_, err := c.load()
	return c, err
}

func (c *Credentials) load() (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificate for agents: %w", err)
	}
	return &cert, nil
}

// Route is the way to an agent.
func (c *Credentials) Route(a Agent) Route {
	return Route{
		Dial:     func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, a) },
		Target:   &toolboxv1.Target{Name: a.Name, Uid: a.UID},
		Identity: a.UID,
	}
}

// Meet asks an agent who it is, and returns its answer and the agent with its key.
func (c *Credentials) Meet(ctx context.Context, a Agent) (Agent, *toolboxv1.HelloReply, error) {
	route := c.Route(a)
	route.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := c.dial(ctx, a)
		if err == nil {
			a.KeySHA256 = keyDigest(conn.ConnectionState())
		}
		return conn, err
	}
	hello, err := NewRouted(route, "").Hello(ctx, &toolboxv1.Hello{})
	return a, hello, err
}

func (c *Credentials) dial(ctx context.Context, a Agent) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", a.Address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.load()
		},
		// An agent makes its certificate itself, so that there is no authority to ask: it is known by its key.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(a.KeySHA256) > 0 && !bytes.Equal(keyDigest(state), a.KeySHA256) {
				return ErrElsewhere
			}
			return nil
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// keyDigest is empty where the peer showed no certificate.
func keyDigest(state tls.ConnectionState) []byte {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	sum := sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	return sum[:]
}
