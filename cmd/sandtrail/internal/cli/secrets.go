package cli

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/toolbox/credentials"
)

// Secrets is `sandtrail secrets`.
type Secrets struct {
	Namespace string        `default:"sandtrail" help:"Namespace of the services."`
	Name      string        `default:"sandtrail" help:"What the names of the secrets begin with; the chart's value secrets.prefix."`
	Tenant    string        `default:"acme" help:"Tenant of the first API key, which is printed to stderr once and kept nowhere."`
	Valid     time.Duration `default:"26280h" help:"How long the certificates are good for that the services show to agents."`
}

// secret is a Secret of Kubernetes.
type secret struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]any    `json:"metadata"`
	Type       string            `json:"type"`
	StringData map[string]string `json:"stringData"`
}

// Run prints a list for `kubectl apply -f -`. Each service has a secret of its own, so that its pods hold nothing of another's.
func (s *Secrets) Run(e *Env) error {
	if !subject.ValidTenant(s.Tenant) {
		return usagef("--tenant: 1 to 64 of A-Z a-z 0-9 _ -")
	}
	if s.Valid < time.Hour {
		return usagef("--valid: at least 1h")
	}
	var items []secret
	add := func(name string, data map[string]string) {
		items = append(items, secret{
			APIVersion: "v1", Kind: "Secret", Type: "Opaque", StringData: data,
			Metadata: map[string]any{
				"name": s.Name + "-" + name, "namespace": s.Namespace, "labels": map[string]string{"app.kubernetes.io/part-of": "sandtrail"},
			},
		})
	}
	for _, r := range permission.Roles() {
		seed, public, err := nkey()
		if err != nil {
			return err
		}
		add("nats-"+string(r), map[string]string{"seed": seed, "public": public})
	}
	add("nats-routes", map[string]string{"password": random()})
	add("webhook", map[string]string{"webhook.key": hex.EncodeToString(randomBytes())})
	add("seal", map[string]string{"seal.key": hex.EncodeToString(randomBytes())})
	key := random()
	keys, err := json.Marshal(map[string]any{"keys": []map[string]string{{"name": "first", "tenant": s.Tenant, "sha256": digest(key)}}})
	if err != nil {
		return fmt.Errorf("encode API keys: %w", err)
	}
	add("api-keys", map[string]string{"keys.json": string(keys)})
	if err := s.agents(add); err != nil {
		return err
	}
	out := json.NewEncoder(e.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}); err != nil {
		return fmt.Errorf("print the secrets: %w", err)
	}
	_, err = fmt.Fprintf(e.Stderr, "API key of tenant %s (shown once): %s\n", s.Tenant, key)
	return err
}

// agents makes what services prove themselves with to the agents in sandboxes. The authority's own key is nowhere but in this process:
// nobody can sign another certificate later.
func (s *Secrets) agents(add func(string, map[string]string)) error {
	authority, err := credentials.NewAuthority(s.Valid)
	if err != nil {
		return fmt.Errorf("make the authority of callers: %w", err)
	}
	add("agent-ca", map[string]string{"ca.crt": string(authority.Cert)})
	for _, service := range []string{"lifecycle", "exec"} {
		pair, err := credentials.Issue(authority, "sandtrail-"+service, s.Valid)
		if err != nil {
			return fmt.Errorf("make the certificate of %s: %w", service, err)
		}
		add("agent-"+service, map[string]string{"tls.crt": string(pair.Cert), "tls.key": string(pair.Key)})
	}
	return nil
}

func nkey() (seed, public string, err error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", "", fmt.Errorf("make an nkey: %w", err)
	}
	defer pair.Wipe()
	raw, err := pair.Seed()
	if err != nil {
		return "", "", fmt.Errorf("make an nkey: %w", err)
	}
	public, err = pair.PublicKey()
	return string(raw), public, err
}

func randomBytes() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}

func random() string { return base64.RawURLEncoding.EncodeToString(randomBytes()) }

func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
