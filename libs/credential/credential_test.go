package credential_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/credential"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/permission"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestEachMistakeIsToldAndNoSecretIs(t *testing.T) {
	const secret = "SUAMNOTASEEDBUTSECRET"
	file, absent := write(t, secret), filepath.Join(t.TempDir(), "absent")
	for want, n := range map[string]credential.NATS{
		"only one of them": {Creds: file, Nkey: file},
		"--nats-token: on": {Nkey: file, Token: file},
		"--nats-token: op": {Token: absent},
		"needs the other":  {Cert: file},
		"--nats-inbox":     {Inbox: "a.>"},
		"--nats-ca":        {CA: absent},
		"--nats-nkey":      {Nkey: absent},
		"--nats-key":       {Cert: file, Key: absent},
	} {
		err := n.Validate()
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), secret)
	}
	err := credential.NATS{Cert: absent, Inbox: "*"}.Validate()
	require.ErrorContains(t, err, "--nats-inbox")
	require.ErrorContains(t, err, "--nats-cert", "every mistake at once")
	require.NoError(t, credential.NATS{}.Validate())

	_, err = credential.NATS{Nkey: file}.Options("exec")
	require.ErrorContains(t, err, "does not hold the seed")
	require.NotContains(t, err.Error(), secret)
}

func TestASeedLetsItsRoleInUnderItsOwnInbox(t *testing.T) {
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	rules, err := permission.Of(permission.GC, "")
	require.NoError(t, err)
	s, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), Port: -1, Users: []permission.User{{Nkey: public, Rules: rules}}})
	require.NoError(t, err)
	t.Cleanup(s.Shutdown)

	options, err := credential.NATS{Nkey: write(t, string(seed)+"\n")}.Options("gc")
	require.NoError(t, err)
	nc, err := nats.Connect(s.URL(), options...)
	require.NoError(t, err)
	defer nc.Close()
	require.True(t, strings.HasPrefix(nc.NewInbox(), permission.Inbox(permission.GC)+"."))
	_, err = nats.Connect(s.URL())
	require.ErrorIs(t, err, nats.ErrAuthorization)

	// A service whose server may have to prove itself takes no server that does not.
	options, err = credential.NATS{CA: write(t, "no certificate")}.Options("gc")
	require.NoError(t, err)
	_, err = nats.Connect(s.URL(), options...)
	require.Error(t, err)
}

func TestATokenIsReadForEachConnection(t *testing.T) {
	s := natstest.Configured(t, `authorization { token: "one for all" }`)
	file := write(t, "another\n")
	options, err := credential.NATS{Token: file}.Options("exec")
	require.NoError(t, err)
	_, err = nats.Connect(s.ClientURL(), options...)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.NoError(t, os.WriteFile(file, []byte("one for all\n"), 0o600))
	nc, err := nats.Connect(s.ClientURL(), options...)
	require.NoError(t, err)
	nc.Close()
}
