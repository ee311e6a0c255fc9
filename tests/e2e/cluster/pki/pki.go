// Package pki makes the certificate authority, certificates and kubeconfigs of a test cluster.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// lifetime of everything that is signed: a cluster that is kept up between runs must outlive a working week.
const lifetime = 30 * 24 * time.Hour

// Authority signs the certificates of one cluster. Its files lie in one directory: ca.crt, ca.key, and NAME.crt and NAME.key of each that
// was written.
type Authority struct {
	Dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	encoded     []byte
}

// Pair is a certificate and its key, each as PEM.
type Pair struct{ Certificate, Key []byte }

// New makes an authority in a directory, which is made too.
func New(dir string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "sandtrail-test-cluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	a := &Authority{Dir: dir, key: key}
	der, err := a.sign(template, template, key)
	if err != nil {
		return nil, err
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.encoded = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return a, a.write("ca", Pair{a.encoded, encoded})
}

// Open reads the authority of a directory that New wrote.
func Open(dir string) (*Authority, error) {
	a := &Authority{Dir: dir}
	var err error
	if a.encoded, err = os.ReadFile(a.CertificateFile("ca")); err != nil {
		return nil, err
	}
	encoded, err := os.ReadFile(a.KeyFile("ca"))
	if err != nil {
		return nil, err
	}
	certificate, _ := pem.Decode(a.encoded)
	key, _ := pem.Decode(encoded)
	if certificate == nil || key == nil {
		return nil, fmt.Errorf("%s holds no PEM", dir)
	}
	if a.certificate, err = x509.ParseCertificate(certificate.Bytes); err != nil {
		return nil, err
	}
	a.key, err = x509.ParseECPrivateKey(key.Bytes)
	return a, err
}

// CertificateFile and KeyFile are the paths of what Server, Client and New wrote.
func (a *Authority) CertificateFile(name string) string { return filepath.Join(a.Dir, name+".crt") }
func (a *Authority) KeyFile(name string) string         { return filepath.Join(a.Dir, name+".key") }

// Certificate is the authority's own, as PEM.
func (a *Authority) Certificate() []byte { return a.encoded }

func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	// Clocks of a host may be set back while a test runs.
	template.NotBefore, template.NotAfter = time.Now().Add(-24*time.Hour), time.Now().Add(lifetime)
	return x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
}

func (a *Authority) pair(template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := a.sign(template, a.certificate, key)
	if err != nil {
		return Pair{}, err
	}
	encoded, err := encodeKey(key)
	return Pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), encoded}, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// Server signs a certificate for names and addresses.
func (a *Authority) Server(name string, hosts ...string) (Pair, error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.pair(template)
}

// Client signs a certificate that proves a user and its groups to the API server.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	return a.pair(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// WriteServer and WriteClient sign and write to CertificateFile(name) and KeyFile(name).
func (a *Authority) WriteServer(name string, hosts ...string) error {
	p, err := a.Server(name, hosts...)
	return errors.Join(err, a.write(name, p))
}

func (a *Authority) WriteClient(name, user string, groups ...string) error {
	p, err := a.Client(user, groups...)
	return errors.Join(err, a.write(name, p))
}

func (a *Authority) write(name string, p Pair) error {
	if err := os.WriteFile(a.CertificateFile(name), p.Certificate, 0o600); err != nil {
		return err
	}
	return os.WriteFile(a.KeyFile(name), p.Key, 0o600)
}

// WriteKeyPair writes a key for service account tokens: NAME.key, and NAME.pub to check them by.
func (a *Authority) WriteKeyPair(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.KeyFile(name), private, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.Dir, name+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600)
}

// Kubeconfig signs a client certificate and returns a kubeconfig that holds it.
func (a *Authority) Kubeconfig(server, user string, groups ...string) (*api.Config, error) {
	pair, err := a.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	c := api.NewConfig()
	c.Clusters["test"] = &api.Cluster{Server: server, CertificateAuthorityData: a.encoded}
	c.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: pair.Certificate, ClientKeyData: pair.Key}
	c.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: user}
	c.CurrentContext = "test"
	return c, nil
}

// WriteKubeconfig writes a kubeconfig to KubeconfigFile(name).
func (a *Authority) WriteKubeconfig(name, server, user string, groups ...string) error {
	c, err := a.Kubeconfig(server, user, groups...)
	if err != nil {
		return err
	}
	return clientcmd.WriteToFile(*c, a.KubeconfigFile(name))
}

// KubeconfigFile is the path of what WriteKubeconfig wrote.
func (a *Authority) KubeconfigFile(name string) string {
	return filepath.Join(a.Dir, name+".kubeconfig")
}
