package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// The commands that docs/NATS.md gives a subscriber, with the nats program and the seed of his nkey.
func TestTheNATSCLIOfASubscriberReachesItsTenantAndNothingElse(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds the nats program")
	}
	dir := t.TempDir()
	public := func(name string) string {
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		seed, err := pair.Seed()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), seed, 0o600))
		key, err := pair.PublicKey()
		require.NoError(t, err)
		return key
	}
	text, err := permission.Accounts("SANDTRAIL", []permission.User{{Nkey: public("services"), Rules: permission.Rules{Publish: []string{">"}, Subscribe: []string{">"}}}},
		permission.Subscriber{Name: "billing", Tenant: "acme", Nkey: public("billing.seed")})
	require.NoError(t, err)
	s := natstest.Configured(t, text)

	key, err := nats.NkeyOptionFromSeed(filepath.Join(dir, "services"))
	require.NoError(t, err)
	nc, err := nats.Connect(s.ClientURL(), key)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(t.Context(), js, topology.Options{Replicas: 1}))
	_, err = js.CreateConsumer(t.Context(), topology.StreamEvents, topology.Subscriber("billing", "acme", 0))
	require.NoError(t, err)
	for _, tenant := range []string{"acme", "rival", "acme"} {
		_, err := js.Publish(t.Context(), subject.Exec(tenant, "box", "1").Subject(), []byte("of "+tenant))
		require.NoError(t, err)
	}
	cli := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(natsCLI(t), "nats"), append([]string{
			"--server", s.ClientURL(), "--nkey", filepath.Join(dir, "billing.seed"), "--js-api-prefix", permission.SubscriberPrefix, "--timeout", "2s",
		}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "NO_COLOR=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
	taken, err := cli("consumer", "next", "EVT", "subscriber-billing", "--count", "2")
	require.NoError(t, err, taken)
	require.Equal(t, 2, bytes.Count([]byte(taken), []byte("of acme")), taken)
	require.NotContains(t, taken, "rival")
	state, err := cli("consumer", "info", "EVT", "subscriber-billing")
	require.NoError(t, err, state)
	require.Contains(t, state, "Outstanding Acks: 0 out of maximum 1,000")

	for _, args := range [][]string{
		{"stream", "ls"},
		{"stream", "get", "EVT", "2"},
		{"stream", "view", "EVT"},
		{"consumer", "ls", "EVT"},
		{"consumer", "rm", "EVT", "subscriber-billing", "-f"},
		{"consumer", "add", "EVT", "mine", "--pull", "--filter", "evt.rival.>", "--defaults"},
		{"stream", "purge", "EVT", "-f"},
		{"kv", "ls", "sandbox"},
		{"sub", "live.evt.rival.>", "--count", "1", "--wait", "1s"},
	} {
		out, err := cli(args...)
		require.NotContains(t, out, "of rival", "%s", args)
		if args[0] != "sub" { // it ends well, with nothing
			require.Error(t, err, "%s: %s", args, out)
		}
	}
	after, err := js.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	require.EqualValues(t, 3, after.CachedInfo().State.Msgs)
}
