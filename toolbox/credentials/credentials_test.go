package credentials_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/credentials"
)

func TestAnAuthorityStaysAndItsCallersAreRenewed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	file := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(b)
	}
	var out bytes.Buffer
	require.Zero(t, credentials.Main([]string{"-dir", dir}, &out), out.String())
	ca, exec := file("ca.crt"), file("exec.crt")
	require.Zero(t, credentials.Main([]string{"-dir", dir}, &out), out.String())
	require.Equal(t, ca, file("ca.crt"))
	require.NotEqual(t, exec, file("exec.crt"))

	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(ca)))
	for _, caller := range []string{"exec", "lifecycle"} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, caller+".crt"), filepath.Join(dir, caller+".key"))
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		require.Error(t, err, "a caller is no server")
		require.False(t, pair.Leaf.IsCA)
		info, err := os.Stat(filepath.Join(dir, caller+".key"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}

	require.NoError(t, os.Remove(filepath.Join(dir, "ca.key")))
	require.NotZero(t, credentials.Main([]string{"-dir", dir}, &out))
	require.Equal(t, ca, file("ca.crt"), "half an authority is not replaced")
}

func TestAnAuthorityIsNotReplacedByACallerOfItsName(t *testing.T) {
	for _, name := range []string{"ca", "../exec", ""} {
		var out bytes.Buffer
		require.NotZero(t, credentials.Main([]string{"-dir", t.TempDir(), name}, &out), name)
		require.Contains(t, out.String(), "name of a caller")
	}
}
