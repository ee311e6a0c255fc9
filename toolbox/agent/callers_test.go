package agent_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/agent/agenttest"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// hello calls without a client certificate of its own, or in plain text.
func hello(t *testing.T, dial func(context.Context) (net.Conn, error), target *toolboxv1.Target) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := client.NewRouted(client.Route{Dial: dial, Target: target}, "").Hello(ctx, &toolboxv1.Hello{})
	return err
}

func TestOnlyCallersOfItsAuthorityThatMeanItAreAnswered(t *testing.T) {
	b := agenttest.Host(t)
	target := &toolboxv1.Target{Name: b.Agent.Name, Uid: b.Agent.UID}
	plain := func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", b.Agent.Address)
	}
	nameless := func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", b.Agent.Address) //nolint:gosec // a test
	}
	stranger := agenttest.Caller(t, agenttest.Authority(t))
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"plain text": plain, "no certificate": nameless, "another authority": stranger.Route(b.Agent).Dial,
	} {
		require.ErrorIs(t, hello(t, dial, target), client.ErrUnavailable, name)
	}
	for name, meant := range map[string]*toolboxv1.Target{
		"nobody": nil, "another uid": {Name: b.Agent.Name, Uid: keepertest.NewID()}, "another name": {Name: "sandbox-0", Uid: b.Agent.UID},
	} {
		require.ErrorIs(t, hello(t, b.Dial, meant), client.ErrElsewhere, name)
	}
	other := b.Agent
	other.KeySHA256 = make([]byte, len(other.KeySHA256))
	require.ErrorIs(t, hello(t, b.Credentials.Route(other).Dial, target), client.ErrElsewhere, "another key")
	require.NoError(t, hello(t, b.Dial, target))
}

// A stranger who holds as many connections as it can get does not take the places of those who may call.
func TestThoseWhoDoNotProveThemselvesTakeNoPlaces(t *testing.T) {
	b := agenttest.Host(t)
	for range 400 {
		conn, err := net.Dial("tcp", b.Agent.Address)
		require.NoError(t, err)
		defer conn.Close()
	}
	require.Eventually(t, func() bool {
		_, err := b.Hello(t.Context(), &toolboxv1.Hello{})
		return err == nil
	}, 60*time.Second, 10*time.Millisecond)
}

func TestAnAgentIsConfiguredOnce(t *testing.T) {
	b := agenttest.Host(t, "-sandbox-id", "")
	h, err := b.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.True(t, h.AwaitsConfigure)
	start := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", "echo $A-$B-$KUBERNETES_SERVICE_HOST"}, Env: map[string]string{"B": "exec"}}
	_, err = b.Client.Start(t.Context(), start)
	require.ErrorIs(t, err, &wire.Error{Code: "unavailable", Reason: "toolbox_unavailable"})

	c := &toolboxv1.Configure{SandboxId: b.SandboxID, Env: map[string]string{"A": "sandbox", "B": "sandbox"}}
	for range 2 {
		_, err = b.Configure(t.Context(), c)
		require.NoError(t, err, "the same again is fine")
	}
	for _, another := range []*toolboxv1.Configure{
		{SandboxId: keepertest.NewID(), Env: c.Env}, {SandboxId: b.SandboxID}, {SandboxId: b.SandboxID, Env: map[string]string{"A": "sandbox", "B": "other"}},
	} {
		_, err = b.Configure(t.Context(), another)
		require.ErrorIs(t, err, &wire.Error{Code: "failed_precondition", Reason: "illegal_state"})
	}
	h, err = b.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.False(t, h.AwaitsConfigure)
	require.Equal(t, b.SandboxID, h.SandboxId)
	require.Equal(t, "sandbox-exec-\n", b.Do(t, start).Stdout, "the refused start has not used up its id")
	for name, bad := range map[string]map[string]string{"a name with =": {"A=B": "x"}, "no name": {"": "x"}, "a zero byte": {"A": "\x00"}} {
		_, err = b.Configure(t.Context(), &toolboxv1.Configure{SandboxId: b.SandboxID, Env: bad})
		require.ErrorIs(t, err, &wire.Error{Code: "invalid_argument", Reason: "validation"}, name)
	}
}
