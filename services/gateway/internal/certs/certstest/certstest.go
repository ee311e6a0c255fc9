// Package certstest makes certificates for tests.
package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Made is a certificate for 127.0.0.1 that signs itself, and its key, in PEM.
type Made struct{ Cert, Key []byte }

// Make makes one of a serial number that is good from an hour ago until end.
func Make(t testing.TB, serial int64, end time.Time) Made {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "gateway"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if !end.After(template.NotBefore) {
		template.NotBefore = end.Add(-time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return Made{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
}

// Into writes the two files tls.crt and tls.key of a directory, and returns their paths.
func (m Made) Into(t testing.TB, dir string) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	require.NoError(t, os.WriteFile(cert, m.Cert, 0o600))
	require.NoError(t, os.WriteFile(key, m.Key, 0o600))
	return cert, key
}

// Pool trusts the certificates.
func Pool(t testing.TB, all ...Made) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	for _, m := range all {
		require.True(t, pool.AppendCertsFromPEM(m.Cert))
	}
	return pool
}
