// Package credentials makes the authority that agents trust and the certificates by which callers prove themselves to agents.
package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Pair is a certificate and its key, both PEM.
type Pair struct{ Cert, Key []byte }

// clockSlack is how far clocks of nodes may lie behind the one that signs.
const clockSlack = time.Hour

// NewAuthority makes an authority that is valid for so long.
func NewAuthority(valid time.Duration) (Pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "sandtrail agents"}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	return sign(template, valid, nil)
}

// Issue makes the certificate of a caller, which may call any agent that trusts the authority.
func Issue(authority Pair, caller string, valid time.Duration) (Pair, error) {
	parent, err := tls.X509KeyPair(authority.Cert, authority.Key)
	if err != nil {
		return Pair{}, fmt.Errorf("read the authority: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: caller}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return sign(template, valid, &parent)
}

// sign makes a key and a certificate for it; without a parent it signs itself.
func sign(template *x509.Certificate, valid time.Duration, parent *tls.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	const serialBits = 120
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)); err != nil {
		return Pair{}, fmt.Errorf("make a serial number: %w", err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-clockSlack), time.Now().Add(valid)
	issuer, signer := template, any(key)
	if parent != nil {
		issuer, signer = parent.Leaf, parent.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signer)
	if err != nil {
		return Pair{}, fmt.Errorf("sign: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}

// Main makes DIR/ca.crt and DIR/ca.key where they are not there yet, and a new CALLER.crt and CALLER.key of each caller. The result is
// the exit code.
func Main(args []string, out io.Writer) int {
	f := flag.NewFlagSet("toolbox agent-ca", flag.ContinueOnError)
	f.SetOutput(out)
	dir := f.String("dir", ".", "directory of the files")
	days := f.Int("days", 365, "days that callers' certificates are valid; the authority is for ten times as long")
	if f.Parse(args) != nil {
		return 2
	}
	callers := f.Args()
	if len(callers) == 0 {
		callers = []string{"exec", "lifecycle"}
	}
	if err := makeFiles(*dir, time.Duration(*days)*24*time.Hour, callers); err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	return 0
}

func makeFiles(dir string, valid time.Duration, callers []string) error {
	if valid <= 0 {
		return errors.New("days must be positive")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	const caLife = 10
	authority, err := read(dir, "ca")
	if errors.Is(err, fs.ErrNotExist) {
		if authority, err = NewAuthority(caLife * valid); err == nil {
			err = write(dir, "ca", authority)
		}
	}
	if err != nil {
		return err
	}
	for _, name := range callers {
		if name == "ca" || filepath.Base(name) != name {
			return fmt.Errorf("%q cannot be the name of a caller", name)
		}
		pair, err := Issue(authority, name, valid)
		if err != nil {
			return err
		}
		if err := write(dir, name, pair); err != nil {
			return err
		}
	}
	return nil
}

func read(dir, name string) (Pair, error) {
	cert, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		return Pair{}, err
	}
	key, err := os.ReadFile(filepath.Join(dir, name+".key"))
	if err != nil {
		// Not to be taken for an authority that is not there: a new one would make every agent refuse its callers.
		return Pair{}, fmt.Errorf("%s.crt is without its key: %s", name, err.Error())
	}
	return Pair{Cert: cert, Key: key}, nil
}

// write puts the key first: a certificate says that both are there.
func write(dir, name string, p Pair) error {
	for _, f := range []struct {
		suffix string
		data   []byte
	}{{".key", p.Key}, {".crt", p.Cert}} {
		path := filepath.Join(dir, name+f.suffix)
		if err := os.WriteFile(path+".new", f.data, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}
