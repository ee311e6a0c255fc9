package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version"
	"github.com/sandtrail/sandtrail/libs/ids"
)

const (
	// keyVariable holds the API key. There is no flag for it: everybody on a host sees command lines.
	keyVariable = "SANDTRAIL_API_KEY"
	// maxKeyBytes is far more than a key has.
	maxKeyBytes = 4096
)

// Server are the flags of every command that asks a server.
type Server struct {
	GRPC       string        `name:"grpc" default:"localhost:50051" env:"SANDTRAIL_ADDR" placeholder:"ADDR" group:"The server" help:"Its address, host:port."`
	APIKeyFile string        `name:"api-key-file" env:"SANDTRAIL_API_KEY_FILE" type:"path" placeholder:"FILE" group:"The server" help:"File with the API key; or set SANDTRAIL_API_KEY to the key itself."`
	Tenant     string        `env:"SANDTRAIL_TENANT" placeholder:"ID" group:"The server" help:"Tenant, for servers without API keys."`
	TLS        bool          `name:"tls" env:"SANDTRAIL_TLS" group:"The server" help:"Encrypt the connection."`
	CAFile     string        `name:"tls-ca" env:"SANDTRAIL_TLS_CA" type:"path" placeholder:"FILE" group:"The server" help:"PEM certificates to trust instead of the system's."`
	Plaintext  bool          `env:"SANDTRAIL_PLAINTEXT" group:"The server" help:"Send the API key to another host without TLS."`
	Reconnect  time.Duration `default:"1m" group:"The server" help:"Give a broken stream up after this long without anything new."`
	Output     string        `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
}

func (s *Server) json() bool { return s.Output == "json" }

// key is the API key, empty where none is given.
func (s *Server) key() (string, error) {
	key := os.Getenv(keyVariable)
	if s.APIKeyFile != "" {
		info, err := os.Stat(s.APIKeyFile)
		if err != nil {
			return "", usagef("--api-key-file: %w", err)
		}
		if info.Mode().IsRegular() && info.Size() > maxKeyBytes {
			return "", usagef("--api-key-file: %s is too large for a key", s.APIKeyFile)
		}
		data, err := os.ReadFile(s.APIKeyFile)
		if err != nil {
			return "", usagef("--api-key-file: %w", err)
		}
		key = string(data)
	}
	key = strings.TrimSpace(key)
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return "", usagef("the API key holds characters that no key has")
		}
	}
	return key, nil
}

func (s *Server) dial() (*client.Client, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Options{
		Addr: s.GRPC, APIKey: key, TLS: s.TLS, CAFile: s.CAFile, Plaintext: s.Plaintext, Reconnect: s.Reconnect,
		Agent: "sandtrail/" + version.Version,
	})
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// connect gives a client and a context that an interrupt or the timeout ends (0: no timeout). Call done at the end.
func (s *Server) connect(e *Env, timeout time.Duration) (ctx context.Context, c *client.Client, done func(), err error) {
	if c, err = s.dial(); err != nil {
		return nil, nil, nil, err
	}
	ctx, stop := e.interruptible()
	cancel := context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	return ctx, c, func() {
		cancel()
		stop()
		_ = c.Close() // nothing is left to be lost
	}, nil
}

// ended is err, or why ctx ended where that is what made the call fail.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// idempotencyKey is the given key or a random one.
func idempotencyKey(given string) string {
	if given != "" {
		return given
	}
	return ids.New()
}

// sandboxID takes an id as it is written in lists; upper case is no mistake.
func sandboxID(s string) (string, error) {
	id := strings.ToLower(s)
	if !ids.Valid(id) {
		return "", usagef("%q is not the id of a sandbox", s)
	}
	return id, nil
}

// pairs reads K=V. What is wrong is told without the value: it may be a secret.
func pairs(flag string, given []string, bare func(key string) (string, error)) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	all := map[string]string{}
	for i, p := range given {
		k, v, ok := strings.Cut(p, "=")
		if k == "" {
			return nil, usagef("%s number %d has no name: give NAME=VALUE", flag, i+1)
		}
		if !ok {
			var err error
			if v, err = bare(k); err != nil {
				return nil, err
			}
		}
		if _, twice := all[k]; twice {
			return nil, usagef("%s %s is given twice", flag, k)
		}
		all[k] = v
	}
	return all, nil
}

// environment reads --env; a name alone takes its value from this program's environment, which nobody sees in a process list.
func environment(given []string) (map[string]string, error) {
	return pairs("--env", given, func(k string) (string, error) {
		v, ok := os.LookupEnv(k)
		if !ok {
			return "", usagef("--env %s: it is not set in this environment", k)
		}
		return v, nil
	})
}

func labels(given []string) (map[string]string, error) {
	return pairs("--label", given, func(k string) (string, error) {
		return "", usagef("--label %s has no value: give NAME=VALUE", k)
	})
}

// warn tells a person something on stderr that is no answer.
func (e *Env) warn(format string, args ...any) {
	fmt.Fprintf(e.Stderr, "sandtrail: "+format+"\n", args...)
}
