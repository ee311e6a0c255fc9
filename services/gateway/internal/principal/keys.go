package principal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

// Scheme is how a key is presented: `authorization: ApiKey KEY`.
const Scheme = "ApiKey"

// Entry is one key as it is stored: never the key itself. Keys are 256 random bits, so a plain SHA-256 cannot be guessed back.
type Entry struct {
	// Name is shown in events as key:<name>.
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	// SHA256 of the key, 64 hex digits.
	SHA256 string `json:"sha256"`
	// Expires is optional.
	Expires time.Time `json:"expires,omitzero"`
	// Scopes of the key; without any it has all.
	Scopes []string `json:"scopes,omitempty"`
}

// Keys authenticates callers by API key. A nil Keys, or one without entries, is development mode.
type Keys struct {
	byHash map[[sha256.Size]byte]Entry
	now    func() time.Time
}

// LoadKeys reads a file {"keys": [Entry, …]}. Every mistake in it is reported at once; unknown fields are refused.
func LoadKeys(path string) (*Keys, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	defer f.Close()
	return ParseKeys(f)
}

// ParseKeys is LoadKeys from a reader.
func ParseKeys(r io.Reader) (*Keys, error) {
	var file struct {
		Keys []Entry `json:"keys"`
	}
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	if d.More() {
		return nil, errors.New("read API keys: there is something behind the object")
	}
	k := &Keys{byHash: map[[sha256.Size]byte]Entry{}, now: time.Now}
	var errs []error
	for i, e := range file.Keys {
		hash, err := hex.DecodeString(e.SHA256)
		switch {
		case err != nil || len(hash) != sha256.Size:
			errs = append(errs, fmt.Errorf("keys[%d]: sha256 must be 64 hex digits", i))
		case [sha256.Size]byte(hash) == sha256.Sum256(nil):
			errs = append(errs, fmt.Errorf("keys[%d]: sha256 is that of nothing", i))
		case !subject.ValidTenant(e.Tenant):
			errs = append(errs, fmt.Errorf("keys[%d]: tenant must be 1 to 64 of A-Z a-z 0-9 _ -", i))
		case !subject.ValidToken(e.Name):
			errs = append(errs, fmt.Errorf("keys[%d]: name must be 1 to 64 of A-Z a-z 0-9 _ -", i))
		case len(e.Scopes) > 0 && scopesOf(e) == tenant.None:
			errs = append(errs, fmt.Errorf("keys[%d]: scopes must be of %s, each once", i, tenant.All))
		default:
			if _, twice := k.byHash[[sha256.Size]byte(hash)]; twice {
				errs = append(errs, fmt.Errorf("keys[%d]: the same key stands there twice", i))
			}
			k.byHash[[sha256.Size]byte(hash)] = e
		}
	}
	if len(file.Keys) == 0 {
		errs = append(errs, errors.New("keys: the file has none; leave the setting out for development mode"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("API keys: %w", err)
	}
	return k, nil
}

// Development reports whether there is no key at all.
func (k *Keys) Development() bool { return k == nil || len(k.byHash) == 0 }

// Authenticate takes the value of an authorization header. Every failure is the same unauthorized, so that nothing can be
// learned about which keys exist.
func (k *Keys) Authenticate(authorization string) (Principal, error) {
	if k.Development() {
		return Principal{Actor: "dev", Scopes: tenant.All}, nil
	}
	if authorization == "" {
		return Principal{}, missing()
	}
	key, ok := presentedAs(Scheme, authorization)
	if !ok {
		return Principal{}, refused()
	}
	// The look-up is by digest: what its timing could tell is about a hash that nobody can aim at.
	e, ok := k.byHash[sha256.Sum256([]byte(key))]
	if !ok || (!e.Expires.IsZero() && !k.now().Before(e.Expires)) {
		return Principal{}, refused()
	}
	return Principal{Tenant: e.Tenant, Actor: "key:" + e.Name, Scopes: scopesOf(e)}, nil
}

// scopesOf are the scopes of an entry: all where it names none, none where a name is wrong.
func scopesOf(e Entry) tenant.Scopes {
	if len(e.Scopes) == 0 {
		return tenant.All
	}
	s, err := tenant.ParseScopes(e.Scopes)
	if err != nil {
		return tenant.None
	}
	return s
}
