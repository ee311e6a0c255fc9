package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

const (
	pullAttempts = 3
	// maxManifest and maxConfig bound what of an image is held in memory. Real ones have some KiB.
	maxManifest = 4 << 20
	maxConfig   = 4 << 20
	pullPause   = 500 * time.Millisecond
)

var errPrivateAddress = errors.New("the address is private")

// puller gets images from registries. Plain HTTP is spoken to loopback addresses only, which go-containerregistry decides.
type puller struct {
	transport http.RoundTripper
	proxies   sync.Map // host:port of the proxies in use
	private   bool
	pause     time.Duration
}

func newPuller(private bool, pause time.Duration) *puller {
	p := &puller{private: private, pause: pause}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	guarded := &net.Dialer{Timeout: 10 * time.Second, Control: p.control}
	p.transport = &http.Transport{
		Proxy: p.proxy,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if _, ok := p.proxies.Load(addr); ok || p.private {
				return dialer.DialContext(ctx, network, addr)
			}
			return guarded.DialContext(ctx, network, addr)
		},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: 30 * time.Second, MaxConnsPerHost: 8, ForceAttemptHTTP2: true,
	}
	return p
}

// proxy is the operator's own and may have any address.
func (p *puller) proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err == nil && u != nil {
		port := u.Port()
		if port == "" {
			port = map[string]string{"https": "443", "socks5": "1080"}[u.Scheme]
		}
		if port == "" {
			port = "80"
		}
		p.proxies.Store(net.JoinHostPort(u.Hostname(), port), true)
	}
	return u, err
}

// control sees the address after the name was resolved, so that no name can stand for a private address.
func (p *puller) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap()
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || sharedSpace.Contains(ip) {
		return errPrivateAddress
	}
	return nil
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

func (p *puller) get(ctx context.Context, ref string) (v1.Image, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, err
	}
	d, err := remote.Get(parsed, remote.WithContext(ctx), remote.WithTransport(p.transport),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithRetryBackoff(remote.Backoff{Duration: p.pause, Factor: 2, Jitter: 0.3, Steps: 3}))
	switch {
	case err != nil:
		return nil, err
	case d.Size > maxManifest:
		return nil, invalid("its manifest has %d bytes; at most %d are possible", d.Size, maxManifest)
	case d.MediaType.IsSchema1():
		return nil, invalid("its manifest is of schema 1, which nobody makes any more")
	case !d.MediaType.IsIndex():
		return d.Image()
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, err
	}
	return pick(index, 0)
}

// attempts gets and unpacks an image; what may be better the next time is tried again, with a growing pause.
func (s *Store) attempts(ctx context.Context, ref string, p prepare.Progress) (Image, error) {
	pause := s.o.pause
	for i := 1; ; i++ {
		img, err := s.once(ctx, ref, p)
		if err == nil {
			return img, nil
		}
		failure := classify(ref, err)
		if failure.RetryAfter == 0 || i == pullAttempts || ctx.Err() != nil {
			return Image{}, failure
		}
		s.o.Log.Warn("pulling an image failed, trying again", "image", ref, "attempt", i, "error", err)
		p.Report("image: retry", int64(i), pullAttempts, ref)
		wait := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			wait.Stop()
			return Image{}, failure
		case <-wait.C:
		}
		pause *= 4
	}
}

func (s *Store) once(ctx context.Context, ref string, p prepare.Progress) (Image, error) {
	if source, ok := s.source(ref); ok {
		src, err := source(ctx, p)
		if img, stored := s.pointed(ref); err != nil && stored {
			s.o.Log.Warn("the source of an image fails; the stored image is used", "image", ref, "error", err)
			return img, nil
		}
		if err != nil {
			return Image{}, fault.New(fault.FailedPrecondition, fault.ReasonImagePullFailed, "the built-in image could not be made; the worker's log says why").Because(err)
		}
		return s.unpack(ctx, src, p)
	}
	p.Report("image: pull", 0, 0, ref)
	src, err := s.pull.get(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	return s.unpack(ctx, src, p)
}

func (s *Store) source(ref string) (Source, bool) {
	for k, source := range s.o.Sources {
		if c, err := canonical(k); err == nil && c == ref {
			return source, true
		}
	}
	return nil, false
}

// FromPath is an OCI layout directory, or a tar file as `docker save` makes it, with one image for this platform in it.
func FromPath(path string) Source {
	return func(context.Context, prepare.Progress) (v1.Image, error) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return tarball.ImageFromPath(path, nil)
		}
		index, err := layout.ImageIndexFromPath(path)
		if err != nil {
			return nil, err
		}
		return pick(index, 0)
	}
}

// pick goes through nested indexes, which are at most a few deep.
func pick(index v1.ImageIndex, depth int) (v1.Image, error) {
	raw, err := index.RawManifest()
	if err != nil {
		return nil, err
	}
	manifest, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, invalid("its index cannot be read")
	}
	for _, d := range manifest.Manifests {
		switch {
		case d.MediaType.IsIndex() && depth < 4:
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := pick(inner, depth+1); err == nil {
				return img, nil
			}
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH):
			return index.Image(d.Digest)
		}
	}
	return nil, invalid("it has no variant for linux/%s", runtime.GOARCH)
}

// classify says what a person can do about a failure.
func classify(ref string, err error) *fault.Error {
	var known *fault.Error
	if errors.As(err, &known) {
		return known
	}
	var invalid *invalidError
	var answer *transport.Error
	switch {
	case errors.As(err, &invalid):
		return fault.Newf(fault.FailedPrecondition, fault.ReasonImageInvalid, "the image %s cannot be used: %s", ref, invalid.why).Because(err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return storeFault(err)
	case errors.Is(err, errPrivateAddress):
		return fault.Newf(fault.FailedPrecondition, fault.ReasonImagePullFailed, "the registry of %s has a private address, which this worker does not connect to", ref).Because(err)
	case errors.As(err, &answer):
		return answered(ref, answer).Because(err)
	}
	return fault.Newf(fault.Unavailable, fault.ReasonImagePullFailed, "the image %s could not be fetched: %s", ref, hint(err)).WithRetry(10 * time.Second).Because(err)
}

func answered(ref string, answer *transport.Error) *fault.Error {
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return fault.Newf(fault.NotFound, fault.ReasonImageNotFound, "the registry has no image %s: check its name and tag", ref)
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return fault.Newf(fault.FailedPrecondition, fault.ReasonImagePullFailed, "the registry refuses access to %s: it does not exist or is not public", ref)
	case answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests || answer.Temporary():
		return fault.Newf(fault.Unavailable, fault.ReasonImagePullFailed, "the registry of %s answers with status %d; try again later", ref, answer.StatusCode).WithRetry(10 * time.Second)
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonImagePullFailed, "the registry of %s answers with status %d", ref, answer.StatusCode)
}

func hint(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "the registry's name is not known"
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the registry does not accept connections"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the transfer was cut off"
	}
	return "the connection failed or what came is damaged"
}

func storeFault(err error) *fault.Error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.ResourceExhausted, fault.ReasonDiskFull, "the worker's disk is full: remove images or give it more space").Because(err)
	}
	return fault.New(fault.Internal, fault.ReasonRuntimeFailed, "the worker's image store failed").Because(err)
}
