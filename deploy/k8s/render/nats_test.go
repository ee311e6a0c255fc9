package render_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// configured reads the server's configuration as its pod would.
func configured(t *testing.T, v values) (*server.Options, map[string]permission.Role) {
	t.Helper()
	dir := t.TempDir()
	keys := map[string]permission.Role{}
	found := 0
	for _, o := range rendered(t, v).Objects {
		switch x := typed(t, o).(type) {
		case *corev1.ConfigMap:
			for name, text := range x.Data {
				text = strings.ReplaceAll(text, "store_dir: /data", "store_dir: \""+dir+"\"")
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
		case *appsv1.StatefulSet:
			found++
			env := map[string]string{}
			for _, e := range x.Spec.Template.Spec.Containers[0].Env {
				value := e.Value
				switch {
				case e.Name == "POD_NAME":
					value = "trail-nats-0"
				case e.Name == "PASSWORD":
					value = "0e9-_AbC"
				case strings.HasPrefix(e.Name, "SANDTRAIL_NKEY_"):
					pair, err := nkeys.CreateUser()
					require.NoError(t, err)
					value, err = pair.PublicKey()
					require.NoError(t, err)
					keys[value] = permission.Role(strings.ToLower(strings.TrimPrefix(e.Name, "SANDTRAIL_NKEY_")))
				}
				for name, known := range env {
					value = strings.ReplaceAll(value, "$("+name+")", known)
				}
				env[e.Name] = value
				t.Setenv(e.Name, value)
			}
		}
	}
	require.Equal(t, 1, found)
	o, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	require.NoError(t, err)
	return o, keys
}

func TestNATSGetsTheRulesOfEachRole(t *testing.T) {
	o, keys := configured(t, values{"worker": values{"name": "eu-1"}})
	require.Len(t, o.Nkeys, len(permission.Roles()))
	for _, u := range o.Nkeys {
		rules, err := permission.Of(keys[u.Nkey], "eu-1")
		require.NoError(t, err)
		require.ElementsMatch(t, rules.Publish, u.Permissions.Publish.Allow)
		require.ElementsMatch(t, rules.Deny, u.Permissions.Publish.Deny, keys[u.Nkey])
		require.ElementsMatch(t, rules.Subscribe, u.Permissions.Subscribe.Allow)
	}
	require.Equal(t, "trail-nats-0", o.ServerName)
	require.Equal(t, int32(2<<20), o.MaxPayload)
	require.False(t, o.SyncAlways)
	require.Len(t, o.Routes, 3)
	require.Equal(t, "trail-nats-2.trail-nats.services.svc:6222", o.Routes[2].Host)
	password, _ := o.Routes[0].User.Password()
	require.Equal(t, o.Cluster.Password, password)
	require.Equal(t, "0e9-_AbC", password)
}

// With an account the services have the same rights as without, and each subscriber an account with one user.
func TestSubscribersHaveAccountsOfTheirOwn(t *testing.T) {
	public := func() string {
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		key, err := pair.PublicKey()
		require.NoError(t, err)
		return key
	}
	acme, rival := public(), public()
	o, keys := configured(t, values{"worker": values{"name": "eu-1"}, "nats": values{"replicas": 1, "account": "SANDTRAIL", "subscribers": []any{
		values{"name": "billing", "tenant": "acme", "nkey": acme}, values{"name": "rivals", "tenant": "rival", "nkey": rival},
	}}})
	require.Len(t, o.Nkeys, len(permission.Roles())+2)
	for _, u := range o.Nkeys {
		switch u.Nkey {
		case acme:
			require.Equal(t, "subscriber-billing", u.Account.Name)
		case rival:
			require.Equal(t, "subscriber-rivals", u.Account.Name)
		default:
			require.Equal(t, "SANDTRAIL", u.Account.Name)
			rules, err := permission.Of(keys[u.Nkey], "eu-1")
			require.NoError(t, err)
			require.ElementsMatch(t, rules.Publish, u.Permissions.Publish.Allow)
			require.ElementsMatch(t, rules.Subscribe, u.Permissions.Subscribe.Allow)
		}
	}
	o.Host, o.Port, o.HTTPPort, o.NoLog, o.NoSigs = "127.0.0.1", -1, 0, true, true
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(30*time.Second), "the server takes it")
	account, err := s.LookupAccount("SANDTRAIL")
	require.NoError(t, err)
	require.True(t, account.JetStreamEnabled())
	account, err = s.LookupAccount("subscriber-billing")
	require.NoError(t, err)
	require.False(t, account.JetStreamEnabled())
}

func TestOneServerFlushesBeforeItAcknowledges(t *testing.T) {
	o, _ := configured(t, installations["small"])
	require.True(t, o.SyncAlways)
	require.Empty(t, o.Routes)
	require.Empty(t, o.Cluster.Name)
}

func TestTheDefaultClaimHoldsWhatStreamsReserve(t *testing.T) {
	o, _ := configured(t, installations["small"])
	o.Nkeys, o.Host, o.Port, o.HTTPPort = nil, "127.0.0.1", -1, 0
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(30*time.Second))
	nc, err := nats.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(t.Context(), js, topology.Options{Replicas: 1}))
	used, err := js.AccountInfo(t.Context())
	require.NoError(t, err)
	t.Logf("reserved %d of %d", used.ReservedStore, o.JetStreamMaxStore)
}
