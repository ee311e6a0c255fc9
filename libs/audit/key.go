package audit

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/mod/sumdb/note"
)

// keyName stands in each signature beside the key's hash.
const keyName = "sandtrail"

// maxKeyFile bounds a file with a key, in bytes.
const maxKeyFile = 16 << 10

// Signer signs with an Ed25519 key that it does not give away: a file here, a key management service elsewhere.
type Signer interface {
	// Public is the key that its signatures are checked with.
	Public() ed25519.PublicKey
	// Sign gives the signature of a text, 64 bytes. It may take a moment and fail.
	Sign(ctx context.Context, text []byte) ([]byte, error)
}

// fileKey is a key in this process's memory. It prints as "[redacted]".
type fileKey struct{ private ed25519.PrivateKey }

func (k fileKey) Public() ed25519.PublicKey {
	return ed25519.PublicKey(k.private[ed25519.SeedSize:])
}

func (k fileKey) Sign(_ context.Context, text []byte) ([]byte, error) {
	return ed25519.Sign(k.private, text), nil
}

func (fileKey) String() string   { return "[redacted]" }
func (fileKey) GoString() string { return "[redacted]" }

// LoadSigner reads a private key (PEM, PKCS 8, as `openssl genpkey -algorithm ed25519` writes it) from a file that others may not
// read. A file that is absent is made with a new key, its directory too; of several processes that do so at once all get the same key.
// Beside it FILE.pub is written, with the public key, where it is absent.
func LoadSigner(path string) (Signer, error) {
	s, err := readSigner(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(path); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make audit key: %w", err)
		}
		s, err = readSigner(path)
	}
	if err != nil {
		return nil, err
	}
	public, err := EncodePublic(s.Public())
	if err != nil {
		return nil, err
	}
	// A directory that cannot be written to, as that of a Kubernetes secret, has the public key elsewhere.
	if err := place(path+".pub", public, 0o644); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return nil, fmt.Errorf("write public audit key: %w", err)
	}
	return s, nil
}

func readSigner(path string) (Signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read audit key: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read audit key: %w", err)
	}
	// A group may read it: that is how Kubernetes hands out secrets.
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o037 != 0 {
		return nil, fmt.Errorf("audit key %s must be a regular file that others cannot read (mode 0600), it has %s", path, info.Mode())
	}
	key, err := decode(f, path, "PRIVATE KEY", x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, err
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("audit key %s is no Ed25519 key", path)
	}
	return fileKey{private}, nil
}

// LoadPublic reads a public key (PEM, PKIX, as `openssl pkey -pubout` writes it).
func LoadPublic(path string) (ed25519.PublicKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read public audit key: %w", err)
	}
	defer func() { _ = f.Close() }()
	key, err := decode(f, path, "PUBLIC KEY", x509.ParsePKIXPublicKey)
	if err != nil {
		return nil, err
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("public audit key %s is no Ed25519 key", path)
	}
	return public, nil
}

// decode reads one PEM block. Nothing of the file is in its errors.
func decode(r io.Reader, path, kind string, parse func([]byte) (any, error)) (any, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no PEM block of type %q", path, kind)
	}
	key, err := parse(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s holds no key that can be read", path)
	}
	return key, nil
}

// EncodePublic is what LoadPublic reads.
func EncodePublic(key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode public audit key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

func makeKey(path string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return place(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// place writes a file that must not exist yet, whole or not at all.
func place(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

// KeyID is the short name of a key in signatures and in what is said about them: 8 hex digits.
func KeyID(key ed25519.PublicKey) string {
	v, err := verifier(key)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%08x", v.KeyHash())
}

func verifier(key ed25519.PublicKey) (note.Verifier, error) {
	text, err := note.NewEd25519VerifierKey(keyName, key)
	if err != nil {
		return nil, fmt.Errorf("public audit key: %w", err)
	}
	return note.NewVerifier(text)
}

// noteSigner is a Signer as package note wants it.
type noteSigner struct {
	note.Verifier
	sign func([]byte) ([]byte, error)
}

func (s noteSigner) Sign(text []byte) ([]byte, error) { return s.sign(text) }
