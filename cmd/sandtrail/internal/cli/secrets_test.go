package cli_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// made runs `sandtrail secrets` and gives what each secret holds, and the key that was shown.
func made(t *testing.T) (map[string]map[string]string, string) {
	t.Helper()
	r := runCLI(nil, nil, "secrets", "--namespace", "services", "--tenant", "acme")
	require.Zero(t, r.code, r.stderr)
	var list struct {
		Items []struct {
			Kind       string
			Metadata   struct{ Name, Namespace string }
			StringData map[string]string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
	all := map[string]map[string]string{}
	for _, i := range list.Items {
		require.Equal(t, "Secret", i.Kind)
		require.Equal(t, "services", i.Metadata.Namespace)
		all[i.Metadata.Name] = i.StringData
	}
	require.Len(t, all, len(list.Items))
	shown := regexp.MustCompile(`: (\S+)\n$`).FindStringSubmatch(r.stderr)
	require.Len(t, shown, 2)
	require.NotContains(t, r.stdout, shown[1], "the key itself is kept nowhere")
	return all, shown[1]
}

func TestSecretsAreWholeAndFitTogether(t *testing.T) {
	all, key := made(t)
	for _, r := range permission.Roles() {
		s := all["sandtrail-nats-"+string(r)]
		pair, err := nkeys.FromSeed([]byte(s["seed"]))
		require.NoError(t, err, r)
		public, err := pair.PublicKey()
		require.NoError(t, err)
		require.Equal(t, public, s["public"])
		require.True(t, permission.ValidNkey(public))
	}
	require.Len(t, all["sandtrail-seal"]["seal.key"], 64)
	require.Len(t, all["sandtrail-webhook"]["webhook.key"], 64)
	require.NotEqual(t, all["sandtrail-seal"], all["sandtrail-webhook"], "who sends to the world must not open environments")
	require.NotEmpty(t, all["sandtrail-nats-routes"]["password"])
	sum := sha256.Sum256([]byte(key))
	require.JSONEq(t, `{"keys":[{"name":"first","tenant":"acme","sha256":"`+hex.EncodeToString(sum[:])+`"}]}`, all["sandtrail-api-keys"]["keys.json"])

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(all["sandtrail-agent-ca"]["ca.crt"])))
	for _, service := range []string{"lifecycle", "exec"} {
		s := all["sandtrail-agent-"+service]
		pair, err := tls.X509KeyPair([]byte(s["tls.crt"]), []byte(s["tls.key"]))
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		require.Error(t, err, "it lets nobody pass for a server")
		require.Equal(t, "sandtrail-"+service, pair.Leaf.Subject.CommonName)
	}
	for name, s := range all {
		for field := range s {
			require.False(t, name == "sandtrail-agent-ca" && strings.Contains(field, "key"), "nobody can sign another certificate")
		}
	}
}

func TestSecretsAreNewEachTime(t *testing.T) {
	one, _ := made(t)
	two, _ := made(t)
	for name, s := range one {
		for field, value := range s {
			require.NotEqual(t, value, two[name][field], "%s.%s", name, field)
		}
	}
}

func TestServicesWithoutTheRightWaitForWhatEnsureMakes(t *testing.T) {
	s, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(s.Shutdown)
	nc, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	given := topology.Options{Given: true}
	require.ErrorContains(t, topology.Ensure(t.Context(), js, given), "missing on the NATS server: EVT")

	r := runCLI(nil, nil, "topology", "ensure", "--nats", s.URL(), "--worker", "w1", "--worker", "w2")
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, topology.Ensure(t.Context(), js, given))
	require.NoError(t, topology.EnsureWorker(t.Context(), js, "w2", given))
	require.ErrorContains(t, topology.EnsureWorker(t.Context(), js, "w3", given), "lifecycle-worker-w3-v1")

	// What another version would set otherwise is no reason to wait.
	c, err := js.Stream(t.Context(), topology.StreamDead)
	require.NoError(t, err)
	config := c.CachedInfo().Config
	config.Description = "of another version"
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(t.Context(), js, given))
}
