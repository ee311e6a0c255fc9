// Package certs is the certificate that a gateway shows its callers, read from files and read again when they change.
package certs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Every is how often the files are looked at unless New is told otherwise.
const Every = 2 * time.Second

// maxFile bounds each of the two files, in bytes.
const maxFile = 1 << 20

// Pair is a certificate chain and its key, as they stand in two PEM files.
type Pair struct {
	certFile, keyFile string
	every             time.Duration
	log               *slog.Logger
	now               func() time.Time
	current           atomic.Pointer[tls.Certificate]
	// seen is the digest of what was read last, good or not, so that a broken pair is told once.
	seen    [sha256.Size]byte
	reloads *prometheus.CounterVec
}

// New reads the pair and fails where it cannot be shown: a file is missing, the key is another certificate's, its time is over or has
// not come. every is how often Run looks; 0 means Every. Without a certFile nothing is read or shown, and only the metrics are there.
func New(certFile, keyFile string, every time.Duration, log *slog.Logger, registry prometheus.Registerer) (*Pair, error) {
	if every <= 0 {
		every = Every
	}
	p := &Pair{certFile: certFile, keyFile: keyFile, every: every, log: log, now: time.Now}
	if certFile != "" {
		c, seen, err := p.read()
		if err != nil {
			return nil, err
		}
		p.seen = seen
		p.current.Store(c)
	}
	p.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_tls_reloads_total", Help: "Changes of the certificate's files, by what became of them: loaded or refused.",
	}, []string{"result"})
	end := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sandtrail_tls_not_after_timestamp_seconds", Help: "When the certificate that is shown ends; 0: none is.",
	}, func() float64 {
		if c := p.current.Load(); c != nil {
			return float64(c.Leaf.NotAfter.Unix())
		}
		return 0
	})
	for _, result := range []string{loaded, refused} {
		p.reloads.WithLabelValues(result)
	}
	for _, c := range []prometheus.Collector{p.reloads, end} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of TLS: %w", err)
		}
	}
	return p, nil
}

// What becomes of a change of the files.
const loaded, refused = "loaded", "refused"

// Shows reports whether there is a certificate at all.
func (p *Pair) Shows() bool { return p.certFile != "" }

// Config is that of a server which shows the pair as it is at each handshake: TLS 1.2 and newer.
func (p *Pair) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current.Load(), nil },
	}
}

// Run takes over a new pair once both of its files are there, until ctx ends. What cannot be shown is told once and changes nothing: the
// pair before it stays. Contents are compared, not times: a mounted secret changes by a link, within one tick of any clock.
func (p *Pair) Run(ctx context.Context) {
	if !p.Shows() {
		return
	}
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (p *Pair) look(ctx context.Context) {
	c, seen, err := p.read()
	if seen == p.seen {
		return
	}
	p.seen = seen
	if err != nil {
		p.reloads.WithLabelValues(refused).Inc()
		p.log.ErrorContext(ctx, "the new certificate is not taken; the one before it stays", "file", p.certFile, "error", err)
		return
	}
	p.current.Store(c)
	p.reloads.WithLabelValues(loaded).Inc()
	p.log.InfoContext(ctx, "the certificate was read again", "file", p.certFile, "not_after", c.Leaf.NotAfter)
}

// read gives the pair in the files and the digest of what they hold; one that cannot be read has the digest of the failure.
func (p *Pair) read() (*tls.Certificate, [sha256.Size]byte, error) {
	cert, certErr := readFile(p.certFile)
	key, keyErr := readFile(p.keyFile)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, sha256.Sum256([]byte(err.Error())), fmt.Errorf("read the certificate and its key: %w", err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%d\n", len(cert))
	hash.Write(cert)
	hash.Write(key)
	c, err := tls.X509KeyPair(cert, key)
	if err == nil {
		err = p.inTime(&c)
	}
	if err != nil {
		return nil, [sha256.Size]byte(hash.Sum(nil)), fmt.Errorf("certificate %s with key %s: %w", p.certFile, p.keyFile, err)
	}
	return &c, [sha256.Size]byte(hash.Sum(nil)), nil
}

func (p *Pair) inTime(c *tls.Certificate) error {
	switch now := p.now(); {
	case now.After(c.Leaf.NotAfter):
		return fmt.Errorf("its time was over at %s", c.Leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.Leaf.NotBefore):
		return fmt.Errorf("its time begins at %s", c.Leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := io.CopyN(&b, f, maxFile+1); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if b.Len() > maxFile {
		return nil, fmt.Errorf("%s is over %d bytes", path, maxFile)
	}
	return b.Bytes(), nil
}
