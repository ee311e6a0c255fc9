// Package client calls a Sandtrail server for the command line: it presents the key, repeats what is safe to repeat, and goes
// on with a stream where it was cut.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/outputcodec"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	headerAuthorization = "authorization"
	headerCorrelation   = "x-correlation-id"
	headerIdempotency   = "idempotency-key"
	headerExec          = "sandtrail-exec-id"
	// maxMessage is more than the largest part of a file that is asked for, with its frame.
	maxMessage = 17 << 20
	// readBuffer is how many bytes are taken from the kernel at once.
	readBuffer = 128 << 10
)

// Options of a connection.
type Options struct {
	// Addr is host:port.
	Addr string
	// APIKey is sent with every call; empty for servers in development mode.
	APIKey string
	// TLS encrypts the connection; CAFile has the PEM certificates to trust instead of the system's.
	TLS    bool
	CAFile string
	// Plaintext allows to send the key to another host without TLS.
	Plaintext bool
	// Agent names the program to the server.
	Agent string
	// Patience is how long a call that cannot reach the server is repeated: 5 s unless set.
	Patience time.Duration
	// Reconnect is how long a cut stream may go on without anything new before it is given up: 60 s unless set.
	Reconnect time.Duration
	// Silence is after how long without a message, heartbeats included, a stream counts as cut: 45 s unless set. The server is
	// never silent for more than 10 s.
	Silence time.Duration
}

// ErrPlaintextKey: the key would travel readable over a network.
var ErrPlaintextKey = errors.New("the API key would be sent to another host in clear: give --tls, or --plaintext if the way there is safe")

// Client is a connection. Its methods may be called concurrently.
type Client struct {
	computev1.ComputeServiceClient
	conn        *grpc.ClientConn
	options     Options
	correlation string
}

// New makes a client; it connects with the first call. All calls of one client have one correlation id.
func New(o Options) (*Client, error) {
	for d, value := range map[*time.Duration]time.Duration{
		&o.Patience: 5 * time.Second, &o.Reconnect: time.Minute, &o.Silence: 45 * time.Second,
	} {
		if *d == 0 {
			*d = value
		}
	}
	if o.APIKey != "" && !o.TLS && !o.Plaintext && !loopback(o.Addr) {
		return nil, ErrPlaintextKey
	}
	creds, err := transport(o)
	if err != nil {
		return nil, err
	}
	c := &Client{options: o, correlation: ids.New()}
	c.conn, err = grpc.NewClient(o.Addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(o.Agent),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage), grpc.ForceCodecV2(outputcodec.New())),
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(c.outgoing(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(c.outgoing(ctx), desc, cc, method, opts...)
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.Addr, err)
	}
	c.ComputeServiceClient = computev1.NewComputeServiceClient(c.conn)
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) outgoing(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, headerCorrelation, c.correlation)
	if c.options.APIKey != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, headerAuthorization, "ApiKey "+c.options.APIKey)
	}
	return ctx
}

// WithKey sends an idempotency key with the calls made under ctx: a repeated call is the same call then.
func WithKey(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, headerIdempotency, key)
}

func transport(o Options) (credentials.TransportCredentials, error) {
	if !o.TLS {
		return insecure.NewCredentials(), nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the trusted certificates: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", o.CAFile)
		}
	}
	return credentials.NewTLS(cfg), nil
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
