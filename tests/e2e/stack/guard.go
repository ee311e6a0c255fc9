package stack

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/permission"
)

// Worker is the name of the worker that Processes and Guarded start, Joiner that of one that a guarded server lets in beside it.
const (
	Worker = "local"
	Joiner = "joiner"
)

// guard is a NATS server that lets each service do what its role may.
type guard struct {
	dir   string
	users []permission.User
	// all is the test's own key, which may do everything.
	all []nats.Option
	log *slog.Logger

	mu   sync.Mutex
	said bytes.Buffer
}

// Guarded is Processes with a key for each service on a server that refuses what its role may not, and the scheduler as a process of its
// own. The function gives what the server refused so far, a line each.
func Guarded(t *testing.T, extra ...Extra) (s *Stack, refused func() []string) {
	t.Helper()
	g := &guard{dir: t.TempDir()}
	g.log = slog.New(slog.NewTextHandler(g, nil))
	for _, r := range append(permission.Roles(), permission.Host) {
		of := Worker
		if r == permission.Host {
			of = Joiner
		}
		rules, err := permission.Of(r, of)
		require.NoError(t, err)
		pair, public := g.key(t)
		seed, err := pair.Seed()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(g.seed(r), seed, 0o600))
		g.users = append(g.users, permission.User{Nkey: public, Rules: rules})
	}
	pair, public := g.key(t)
	everything := permission.Rules{Publish: []string{">"}, Subscribe: []string{">"}}
	g.users = append(g.users, permission.User{Nkey: public, Rules: everything})
	g.all = []nats.Option{nats.Nkey(public, pair.Sign)}
	s = processes(t, Bin(t), g, extra...)
	s.joiner = g.seed(permission.Host)
	return s, g.refused
}

func (g *guard) key(t *testing.T) (nkeys.KeyPair, string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	return pair, public
}

func (g *guard) seed(r permission.Role) string { return filepath.Join(g.dir, string(r)) }

// Write takes what the server says.
func (g *guard) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.said.Write(p)
}

func (g *guard) refused() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var lines []string
	for line := range strings.Lines(g.said.String()) {
		if strings.Contains(line, "Violation") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// provision makes the streams as an installation does, with the key that may.
func (g *guard) provision(t *testing.T, s *Stack) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(Bin(t), "sandtrail"),
		"topology", "ensure", "--nats", s.NATS, "--nats-nkey", g.seed(permission.Provisioner), "--worker", Worker, "--timeout", "2m")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, g.refused())
}

func (g *guard) flags() Extra {
	flags := func(r permission.Role, more ...string) []string {
		return append([]string{"--nats-nkey", g.seed(r), "--nats-inbox", permission.Inbox(r), "--provisioned"}, more...)
	}
	return Extra{
		"gateway": flags(permission.Gateway), "exec": flags(permission.Exec), "usage": flags(permission.Usage), "gc": flags(permission.GC),
		"lifecycle": flags(permission.Worker, "--roles", "worker"), "scheduler": flags(permission.Scheduler, "--roles", "scheduler"),
	}
}
