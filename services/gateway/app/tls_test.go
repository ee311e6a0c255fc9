package app_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
	"github.com/sandtrail/sandtrail/services/gateway/internal/certs/certstest"
)

// secured is a world whose gateway shows the first certificate of a directory.
func secured(t *testing.T, first certstest.Made) (w *world, dir string) {
	t.Helper()
	dir = t.TempDir()
	cert, key := first.Into(t, dir)
	return newWorld(t, twoTenants, func(c *app.Config) { c.TLSCert, c.TLSKey, c.TLSEvery = cert, key, 20*time.Millisecond }), dir
}

// shown is the serial number of the certificate that a listener shows.
func shown(t *testing.T, addr string, pool *x509.CertPool) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, "h2", conn.ConnectionState().NegotiatedProtocol)
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func year() time.Time { return time.Now().Add(365 * 24 * time.Hour) }

// Both listeners speak TLS alone, of 1.2 and newer, and HTTP/1.1 and 2 by what the client takes.
func TestTLSOnBothListeners(t *testing.T) {
	made := certstest.Make(t, 1, year())
	w, _ := secured(t, made)
	pool := certstest.Pool(t, made)
	for _, protocol := range []struct {
		http2 bool
		major int
	}{{true, 2}, {false, 1}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: protocol.http2}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.app.HTTP()+"/api/v1/sandbox", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Authorization", "ApiKey "+secret("alice"))
		res, err := (&http.Client{Transport: transport}).Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, protocol.major, res.ProtoMajor)
		require.GreaterOrEqual(t, res.TLS.Version, uint16(tls.VersionTLS12))
		transport.CloseIdleConnections()
	}
	conn, err := grpc.NewClient(w.app.GRPC(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})))
	require.NoError(t, err)
	defer conn.Close()
	_, err = computev1.NewComputeServiceClient(conn).ListSandboxes(w.as("alice"), &computev1.ListSandboxesRequest{})
	require.NoError(t, err)

	_, err = w.ListSandboxes(w.as("alice"), &computev1.ListSandboxesRequest{}) // in clear
	require.Equal(t, codes.Unavailable, status.Code(err))
	for _, addr := range []string{w.app.GRPC(), w.app.HTTP()} {
		_, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
		require.ErrorContains(t, err, "protocol version")
	}
	plain, err := net.Dial("tcp", w.app.HTTP())
	require.NoError(t, err)
	defer plain.Close()
	plain.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(plain, "GET /api/v1/sandbox HTTP/1.1\r\nHost: h\r\nAuthorization: ApiKey "+secret("alice")+"\r\n\r\n")
	require.NoError(t, err)
	answer, _ := io.ReadAll(plain)
	require.Contains(t, string(answer), "400 Bad Request")
	require.NotContains(t, string(answer), "sandboxes")
}

// A new certificate is shown without a start, while calls go on; a broken one changes nothing.
func TestTLSCertificateIsReadAgain(t *testing.T) {
	first, second, third := certstest.Make(t, 1, year()), certstest.Make(t, 2, year()), certstest.Make(t, 3, year())
	w, dir := secured(t, first)
	pool := certstest.Pool(t, first, second, third)
	conn, err := grpc.NewClient(w.app.GRPC(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := computev1.NewComputeServiceClient(conn).WatchEvents(w.as("alice"), &computev1.WatchEventsRequest{})
	require.NoError(t, err)
	listeners := []string{w.app.GRPC(), w.app.HTTP()}
	for _, addr := range listeners {
		require.EqualValues(t, 1, shown(t, addr, pool))
	}
	second.Into(t, dir)
	for _, addr := range listeners {
		w.until(func() bool { return shown(t, addr, pool) == 2 })
	}
	_, key := certstest.Made{Cert: third.Cert, Key: []byte("nonsense")}.Into(t, dir)
	w.until(func() bool { return strings.Contains(w.logs.String(), "not taken") })
	for _, addr := range listeners {
		require.EqualValues(t, 2, shown(t, addr, pool))
	}
	require.NoError(t, os.WriteFile(key, third.Key, 0o600))
	for _, addr := range listeners {
		w.until(func() bool { return shown(t, addr, pool) == 3 })
	}
	_, err = stream.Recv()
	require.NoError(t, err, "a stream goes on with the certificate that it began with")
}

func TestTLSConfigurationsThatAreWrong(t *testing.T) {
	for want, c := range map[string]app.Config{
		"tls-cert, tls-key": {TLSCert: "c"},
		"one needs":         {TLSKey: "k"},
		"jwks-url":          {JWT: app.JWT{JWKS: "http://issuer.example/keys", Issuer: "i", Audience: "a"}},
		"credentials":       {JWT: app.JWT{JWKS: "https://user:password@issuer.example/keys", Issuer: "i", Audience: "a"}},
		"jwt-issuer":        {JWT: app.JWT{JWKS: "https://issuer.example/keys", Audience: "a"}},
		"jwt-audience":      {JWT: app.JWT{JWKS: "https://issuer.example/keys", Issuer: "i"}},
		"jwt-skew":          {JWT: app.JWT{JWKS: "https://issuer.example/keys", Issuer: "i", Audience: "a", Skew: time.Hour}},
		"jwt-tenants":       {JWT: app.JWT{JWKS: "https://issuer.example/keys", Issuer: "i", Audience: "a", Tenants: map[string]string{"x": "a.b"}}},
		"jwt-scopes":        {JWT: app.JWT{JWKS: "https://issuer.example/keys", Issuer: "i", Audience: "a", Scopes: map[string]string{"x": "create+all"}}},
		"is needed for":     {JWT: app.JWT{Issuer: "i"}},
	} {
		c.SealKeyFile = "k"
		require.ErrorContains(t, c.Validate(), want)
	}
	require.NoError(t, app.Config{SealKeyFile: "k", HTTP: "0.0.0.0:1", JWT: app.JWT{JWKS: "http://127.0.0.1:1/keys", Issuer: "i", Audience: "a"}}.Validate())
}
