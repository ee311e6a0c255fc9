package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/seal"
)

// Headers of a message, as Standard Webhooks names them.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

const (
	secretHead  = "whsec_"
	secretBytes = 32
	// Tolerance is how old a message may be for Verify, or how far ahead of our clock.
	Tolerance = 5 * time.Minute
)

// Secret signs messages. It is shown once and recorded sealed.
type Secret struct {
	// ID names it, 12 hex digits of its digest; text is whsec_ and 32 random bytes in base64.
	ID   string
	text string
}

// NewSecret makes a secret.
func NewSecret() Secret {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never fails
	return secretOf(secretHead + base64.StdEncoding.EncodeToString(raw))
}

func secretOf(text string) Secret {
	sum := sha256.Sum256([]byte(text))
	return Secret{ID: hex.EncodeToString(sum[:6]), text: text}
}

// Reveal is the secret itself, for whoever has just made it.
func (s Secret) Reveal() string { return s.text }

// String hides the secret.
func (s Secret) String() string { return "secret " + s.ID }

// GoString hides it too.
func (s Secret) GoString() string { return s.String() }

// associated binds what is sealed to its endpoint: moved to another one it cannot be opened.
func associated(tenant, id string) []byte { return []byte("webhook\x00" + tenant + "\x00" + id) }

// Seal is the secret as the log may hold it.
func (s Secret) Seal(k *seal.Key, tenant, id string) ([]byte, error) {
	return k.Seal([]byte(s.text), associated(tenant, id))
}

// Unseal opens what Seal made; seal.ErrOpen where it was made with another key, or for another endpoint.
func Unseal(k *seal.Key, tenant, id string, sealed []byte) (Secret, error) {
	text, err := k.Open(sealed, associated(tenant, id))
	if err != nil {
		return Secret{}, err
	}
	return secretOf(string(text)), nil
}

// Sign is one signature of a message: v1, and an HMAC-SHA256 over id, time and body. "" where the secret is none.
func (s Secret) Sign(id string, at time.Time, body []byte) string {
	key, err := s.key()
	if err != nil {
		return ""
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func (s Secret) key() ([]byte, error) {
	text, ok := strings.CutPrefix(s.text, secretHead)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) == 0 {
		return nil, errors.New("a secret is whsec_ and base64")
	}
	return key, nil
}

// ErrSignature: the message was not signed with the secret, was changed, or is too old.
var ErrSignature = errors.New("the message is not signed with this secret, or too old")

// Verify checks a message that was received, at a time. secret is what was shown when it was made.
func Verify(secret string, h http.Header, body []byte, now time.Time) error {
	s := secretOf(secret)
	if _, err := s.key(); err != nil {
		return err
	}
	unix, err := strconv.ParseInt(h.Get(HeaderTimestamp), 10, 64)
	at := time.Unix(unix, 0)
	if err != nil || h.Get(HeaderID) == "" || now.Sub(at).Abs() > Tolerance {
		return ErrSignature
	}
	want := []byte(s.Sign(h.Get(HeaderID), at, body))
	for got := range strings.FieldsSeq(h.Get(HeaderSignature)) {
		if hmac.Equal(want, []byte(got)) {
			return nil
		}
	}
	return ErrSignature
}
