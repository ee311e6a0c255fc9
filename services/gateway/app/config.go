package app

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// Config of the gateway. The zero value of every field but SealKeyFile means the default that its comment names.
type Config struct {
	// GRPC is the address of the gRPC listener: 127.0.0.1:50051. Without API keys it must be a loopback address.
	GRPC string
	// HTTP is the address of the HTTP API: 127.0.0.1:8080. Without API keys it must be a loopback address.
	HTTP string
	// Ops is the address of health and metrics; empty: they are on HTTP. Give them one of their own where tenants reach HTTP.
	Ops string
	// Image of a sandbox whose request over HTTP names none: DefaultImage.
	Image string
	// DevelopmentTenant is for whom callers without a credential make named sandboxes in development mode: default.
	DevelopmentTenant string
	// CORSOrigins may call the HTTP API from browsers; none by default, "*" is any.
	CORSOrigins []string
	// TLSCert and TLSKey are PEM files, both or none: then gRPC and HTTP are served by TLS alone. They are read again every TLSEvery, 2 s,
	// and what is new in them is shown from then on; Ops with an address of its own stays in clear.
	TLSCert, TLSKey string
	TLSEvery        time.Duration
	// JWT says whose tokens are taken beside API keys; none unless set. With them development mode is over.
	JWT JWT
	// HeadTime is how long a client of HTTP may take to send the head of a request, and its TLS handshake: 5 s; BodyTime a body: 30 s;
	// IdleTime how long its connection waits for a further request: 1 min.
	HeadTime, BodyTime, IdleTime time.Duration
	// HTTPMemory is what all calls over HTTP hold in bodies, files and outputs that they gather, in bytes: 256 MiB. A tenant gets half of
	// what the others leave of it.
	HTTPMemory int
	// KeysFile holds the API keys; empty is development mode: no credential is asked for, requests name their tenant.
	KeysFile string
	// RequireKeys ends development mode although there is no KeysFile: every call needs a key, of the file or of the log.
	RequireKeys bool
	// SealKeyFile holds the key that encrypts values of environment variables and standard input on their way to a worker. The
	// workers must have the same.
	SealKeyFile string
	// WorkspaceBytes unless a request says otherwise: 5 GiB; MaxWorkspaceBytes that one may ask for: 100 GiB.
	WorkspaceBytes, MaxWorkspaceBytes uint64
	// MaxCPUMillis that a request may ask for: 64,000.
	MaxCPUMillis uint32
	// MaxMemoryBytes that a request may ask for: 64 GiB.
	MaxMemoryBytes uint64
	// MaxFileBytes of a file, or of what an archive holds, that one call over HTTP writes: 1 TiB, so that the workspace's size comes first.
	MaxFileBytes int64
	// Runtime of a sandbox unless a request says otherwise: 24 h; MaxRuntime that one may ask for: 30 days.
	Runtime, MaxRuntime time.Duration
	// ExecTimeout unless a request says otherwise: 1 h; MaxExecTimeout that one may ask for: 24 h.
	ExecTimeout, MaxExecTimeout time.Duration
	// StartWait is how long calls wait for a sandbox that starts: 5 min.
	StartWait time.Duration
	// DestroyWait is how long a destroy waits for the sandbox to be gone: 60 s.
	DestroyWait time.Duration
	// DisconnectGrace is how long a command goes on after its last reader went away: 30 s.
	DisconnectGrace time.Duration
	// Heartbeat is the longest silence on a stream: 10 s, and at most that, because proxies cut what is silent.
	Heartbeat time.Duration
	// OutagePatience is how long a call that waits for a command waits for a log that cannot be reached: 30 s; PendingWait for an end that was
	// seen to be recorded: 10 s. Then it answers that the outcome is unknown, which a later look may resolve.
	OutagePatience, PendingWait time.Duration
	// Probe is after how long a connection on which nothing comes in is asked whether its client is still there: 15 s; ProbeTimeout how
	// long the answer may take: 10 s. Then the calls on it end as if the client had hung up. At least 1 s each.
	Probe, ProbeTimeout time.Duration
	// Quotas of tenants that have none of their own, as lifecycle and exec have them: for who asks, but for tenant.Keys, to which the gateway
	// itself holds its callers: 200,000, which take up to a fifteenth of what there is for all.
	Quotas tenant.Quotas
	// Drain is how long open calls may go on after a stop: 5 s. Then they are cut; their execs go on.
	Drain time.Duration
}

// JWT is the issuer whose tokens are taken, and what their claims mean.
type JWT = principal.JWTConfig

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	set(&c.GRPC, "127.0.0.1:50051")
	set(&c.HTTP, "127.0.0.1:8080")
	set(&c.Image, DefaultImage)
	set(&c.DevelopmentTenant, "default")
	set(&c.HeadTime, 5*time.Second)
	set(&c.BodyTime, 30*time.Second)
	set(&c.IdleTime, time.Minute)
	set(&c.HTTPMemory, 256<<20)
	set(&c.WorkspaceBytes, 5<<30)
	set(&c.MaxWorkspaceBytes, 100<<30)
	set(&c.MaxCPUMillis, 64_000)
	set(&c.MaxMemoryBytes, 64<<30)
	set(&c.MaxFileBytes, maxFileBytes)
	set(&c.Runtime, 24*time.Hour)
	set(&c.MaxRuntime, 30*24*time.Hour)
	set(&c.ExecTimeout, time.Hour)
	set(&c.MaxExecTimeout, 24*time.Hour)
	set(&c.StartWait, 5*time.Minute)
	set(&c.DestroyWait, time.Minute)
	set(&c.DisconnectGrace, 30*time.Second)
	set(&c.Heartbeat, maxHeartbeat)
	set(&c.OutagePatience, 30*time.Second)
	set(&c.PendingWait, 10*time.Second)
	set(&c.Probe, 15*time.Second)
	set(&c.ProbeTimeout, 10*time.Second)
	set(&c.Drain, 5*time.Second)
	c.Quotas = c.Quotas.Over(tenant.Quotas{tenant.Keys: 200_000})
	return c
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	for _, l := range []struct{ name, addr string }{{"grpc", c.GRPC}, {"http", c.HTTP}, {"ops", c.Ops}} {
		if l.addr == "" {
			continue
		}
		host, _, err := net.SplitHostPort(l.addr)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", l.name, err))
		case c.development() && !loopback(host):
			errs = append(errs, fmt.Errorf("%s: %s is reachable from other hosts, which needs credentials (keys-file, require-keys or jwks-url)", l.name, l.addr))
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("tls-cert, tls-key: one needs the other"))
	}
	if err := c.JWT.Validate(); err != nil {
		errs = append(errs, err)
	}
	if o := badOrigin(c.CORSOrigins); o != "" {
		errs = append(errs, fmt.Errorf("cors-origins: %q is not an origin such as https://example.com", o))
	}
	if !subject.ValidTenant(c.DevelopmentTenant) {
		errs = append(errs, fmt.Errorf("development-tenant: %q must be 1 to 64 of A-Z a-z 0-9 _ -", c.DevelopmentTenant))
	}
	errs = append(errs, c.Quotas.Validate())
	if c.SealKeyFile == "" {
		errs = append(errs, errors.New("seal-key-file: is needed"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		most  time.Duration
	}{
		{"runtime", c.Runtime, c.MaxRuntime},
		{"exec-timeout", c.ExecTimeout, c.MaxExecTimeout},
		{"heartbeat", c.Heartbeat, maxHeartbeat},
		{"start-wait", c.StartWait, 0},
		{"destroy-wait", c.DestroyWait, 0},
		{"disconnect-grace", c.DisconnectGrace, 0},
		{"drain", c.Drain, 0},
		{"outage-patience", c.OutagePatience, 0},
		{"pending-wait", c.PendingWait, 0},
		{"head-time", c.HeadTime, 0},
		{"body-time", c.BodyTime, 0},
		{"idle-time", c.IdleTime, 0},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: %s is under 1ms", d.name, d.value))
		}
		if d.most != 0 && d.value > d.most {
			errs = append(errs, fmt.Errorf("%s: %s is over the maximum of %s", d.name, d.value, d.most))
		}
	}
	for _, d := range []time.Duration{c.Probe, c.ProbeTimeout} {
		if d < time.Second {
			errs = append(errs, fmt.Errorf("probe, probe-timeout: %s is under 1s", d))
		}
	}
	if c.HTTPMemory < 1<<20 {
		errs = append(errs, fmt.Errorf("http-memory: %d is under 1 MiB", c.HTTPMemory))
	}
	if c.WorkspaceBytes > c.MaxWorkspaceBytes {
		errs = append(errs, fmt.Errorf("workspace-bytes: %d is over the maximum of %d", c.WorkspaceBytes, c.MaxWorkspaceBytes))
	}
	if c.MaxFileBytes < 1<<20 || c.MaxFileBytes > maxFileBytes {
		errs = append(errs, fmt.Errorf("max-file-bytes: %d is not between 1 MiB and 1 TiB", c.MaxFileBytes))
	}
	return errors.Join(errs...)
}

// maxFileBytes is what the document of the HTTP API promises at most.
const maxFileBytes = 1 << 40

// maxHeartbeat leaves 5 s until the 15 s that streams promise, for a page of the log that does not come.
const maxHeartbeat = 10 * time.Second

// development reports whether nothing asks for a credential.
func (c Config) development() bool { return c.KeysFile == "" && !c.RequireKeys && !c.JWT.Enabled() }

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (c Config) limits() usecase.Limits {
	return usecase.Limits{
		WorkspaceBytes: c.WorkspaceBytes, MaxWorkspaceBytes: c.MaxWorkspaceBytes, MaxCPUMillis: c.MaxCPUMillis, MaxMemoryBytes: c.MaxMemoryBytes,
		MaxFileBytes: c.MaxFileBytes,
		Runtime:      c.Runtime, MaxRuntime: c.MaxRuntime, ExecTimeout: c.ExecTimeout, MaxExecTimeout: c.MaxExecTimeout,
		StartWait: c.StartWait, DestroyWait: c.DestroyWait, DisconnectGrace: c.DisconnectGrace, Heartbeat: c.Heartbeat,
		Quotas:         c.Quotas,
		OutagePatience: c.OutagePatience,
	}
}
