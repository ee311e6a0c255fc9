package tenant

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
)

const (
	// keyHead begins a key, so that people and scanners of secrets know one; tokenHead one of the shape that clients of the named API know.
	keyHead, tokenHead = "st_", "e2b_"
	// keyBytes and tokenBytes are random: a plain SHA-256 of so many cannot be guessed back, also without the 48 or 32 bits that a prefix shows.
	keyBytes, tokenBytes = 32, 20
	// shown is how much of a key is kept and shown behind its head.
	shown   = 8
	idBytes = 6
)

// Secret is a new key. It is shown once to whom it is for and kept nowhere.
type Secret struct {
	// ID names the key, 12 hex digits; Text is the key itself: st_, 43 characters of 256 random bits, 8 hex digits of a checksum; or e2b_ and
	// 40 hex digits, which are 160 random bits.
	ID, Text string
}

// NewSecret makes a key.
func NewSecret() Secret {
	raw := make([]byte, keyBytes+idBytes)
	_, _ = rand.Read(raw) // never fails
	body := keyHead + base64.RawURLEncoding.EncodeToString(raw[:keyBytes])
	return Secret{
		ID:   hex.EncodeToString(raw[keyBytes:]),
		Text: fmt.Sprintf("%s%08x", body, crc32.ChecksumIEEE([]byte(body))),
	}
}

// NewToken makes a key of the shape that the published clients of named sandboxes look for. It works like any other.
func NewToken() Secret {
	raw := make([]byte, tokenBytes+idBytes)
	_, _ = rand.Read(raw) // never fails
	return Secret{ID: hex.EncodeToString(raw[tokenBytes:]), Text: tokenHead + hex.EncodeToString(raw[:tokenBytes])}
}

// Prefix is what is shown of the key.
func (s Secret) Prefix() string {
	return s.Text[:min(strings.IndexByte(s.Text, '_')+1+shown, len(s.Text))]
}

// Digest is what is kept of the key.
func (s Secret) Digest() [sha256.Size]byte { return Digest(s.Text) }

// String hides the key: what prints it must say so.
func (s Secret) String() string { return s.Prefix() + "…" }

// GoString hides it too.
func (s Secret) GoString() string { return s.String() }

// Digest of a key as callers send it.
func Digest(key string) [sha256.Size]byte { return sha256.Sum256([]byte(key)) }

// Key is an API key as the log tells it.
type Key struct {
	ID, Name, Prefix string
	Digest           [sha256.Size]byte
	Scopes           Scopes
	CreatedAt        time.Time
	// ExpiresAt is zero for a key without an end.
	ExpiresAt time.Time
	// RevokedAt is from when on it does not work because somebody said so or another one took its place; zero: nobody did.
	RevokedAt  time.Time
	ReplacedBy string
	// Revoked: somebody said so, and no clock is asked any more.
	Revoked bool
}

// End is from when on the key does not work; zero: never.
func (k Key) End() time.Time {
	if k.RevokedAt.IsZero() || !k.ExpiresAt.IsZero() && k.ExpiresAt.Before(k.RevokedAt) {
		return k.ExpiresAt
	}
	return k.RevokedAt
}

// Works reports whether the key is good at now.
func (k Key) Works(now time.Time) bool {
	end := k.End()
	return !k.Revoked && (end.IsZero() || now.Before(end))
}

// State in one word at now: live, expired or revoked.
func (k Key) State(now time.Time) string {
	switch {
	case k.Works(now):
		return "live"
	case !k.Revoked && k.End().Equal(k.ExpiresAt):
		return "expired"
	default:
		return "revoked"
	}
}
