// Package seal keeps secrets unreadable while they travel through the log's commands: AES-256-GCM under one key that is in a
// file of this deployment.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	keySize = 32
	// version is the first byte of whatever is sealed, so that another cipher can follow.
	version   = 1
	nonceSize = 12
	tagSize   = 16
	// Overhead is how much longer what is sealed is than the plain bytes.
	Overhead = 1 + nonceSize + tagSize
)

// ErrOpen: what should be opened was not sealed by this key for these associated bytes, or was changed since. It does not say
// which.
var ErrOpen = errors.New("sealed bytes cannot be opened")

// Key seals and opens. It may be used at the same time by several goroutines. It prints as "[redacted]".
type Key struct {
	aead cipher.AEAD
}

// New is a key from 32 bytes.
func New(secret []byte) (*Key, error) {
	if len(secret) != keySize {
		return nil, fmt.Errorf("seal key has %d bytes, needs %d", len(secret), keySize)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return &Key{aead: aead}, nil
}

// Load reads a key of 64 hex digits from a file that only its owner may read, or where this process is not the owner, its group. A file that is absent is made with a random key,
// its directory too; of several processes that do so at the same time one wins and all get its key. A file that others may
// read, or that holds anything else, is an error: it is never overwritten.
func Load(path string) (*Key, error) {
	k, err := read(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := create(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make seal key: %w", err)
	}
	return read(path)
}

func read(path string) (*Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read seal key: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read seal key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("seal key %s is not a regular file", path)
	}
	if perm := info.Mode().Perm(); perm&^allowed(info) != 0 {
		return nil, fmt.Errorf("seal key %s has mode %#o; others must not read it: chmod 600", path, perm)
	}
	// One byte more than a key with a line end, to see that a file is too long.
	text := make([]byte, 2*keySize+3)
	n, err := f.Read(text)
	if err != nil {
		return nil, fmt.Errorf("read seal key %s: %w", path, err)
	}
	// The error of hex names a byte of the key: it stays here.
	secret, err := hex.DecodeString(strings.TrimRight(string(text[:n]), "\r\n"))
	if err != nil || len(secret) != keySize {
		return nil, fmt.Errorf("seal key %s does not hold %d hex digits", path, 2*keySize)
	}
	return New(secret)
}

// allowed are the permissions that a key may have at most. One that somebody else owns, and this process reads by its group, is how
// Kubernetes gives a Secret to a process that is not root.
func allowed(info fs.FileInfo) fs.FileMode {
	const owner, ownerAndReadersOfGroup = 0o700, 0o740
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return ownerAndReadersOfGroup
	}
	return owner
}

// create links a complete file into place, so that no reader ever sees half a key.
func create(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	secret := make([]byte, keySize)
	_, _ = rand.Read(secret) // never fails
	f, err := os.CreateTemp(dir, ".seal-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(hex.EncodeToString(secret) + "\n")
	// What a lost key sealed is lost: the key is on the disk before anything is sealed with it.
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Seal encrypts plain; it opens only together with the same associated bytes, which are not part of the result. The result is
// Overhead bytes longer than plain; empty plain gives empty.
func (k *Key) Seal(plain, associated []byte) ([]byte, error) {
	if len(plain) == 0 {
		return nil, nil
	}
	sealed := make([]byte, 1+nonceSize, len(plain)+Overhead)
	sealed[0] = version
	_, _ = rand.Read(sealed[1:]) // never fails
	return k.aead.Seal(sealed, sealed[1:1+nonceSize], plain, associated), nil
}

// Open decrypts what Seal made. Anything else is ErrOpen; empty gives empty.
func (k *Key) Open(sealed, associated []byte) ([]byte, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	if len(sealed) < Overhead || sealed[0] != version {
		return nil, ErrOpen
	}
	plain, err := k.aead.Open(nil, sealed[1:1+nonceSize], sealed[1+nonceSize:], associated)
	if err != nil {
		return nil, ErrOpen
	}
	return plain, nil
}

const redacted = "[redacted]"

// Format prints no part of the key, whatever the verb.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue keeps the key out of logs.
func (k *Key) LogValue() slog.Value { return slog.StringValue(redacted) }
