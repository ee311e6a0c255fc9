// Package credential is how a process proves to NATS who it is, and knows that the server is the right one.
package credential

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// NATS are the flags of a connection. All are names of files but Inbox; nothing of what stands in them is ever part of an error. The zero
// value proves nothing and takes the server's certificate, where it shows one, by the authorities of the host.
type NATS struct {
	Creds string `name:"nats-creds" env:"SANDTRAIL_NATS_CREDS" type:"path" placeholder:"FILE" group:"The log" help:"File with NATS credentials."`
	Nkey  string `name:"nats-nkey" env:"SANDTRAIL_NATS_NKEY" type:"path" placeholder:"FILE" group:"The log" help:"File with the seed of an nkey."`
	Token string `name:"nats-token" env:"SANDTRAIL_NATS_TOKEN" type:"path" placeholder:"FILE" group:"The log" help:"File with the token that the NATS server asks for."`
	CA    string `name:"nats-ca" env:"SANDTRAIL_NATS_CA" type:"path" placeholder:"FILE" group:"The log" help:"File with the certificates that the NATS server's must be signed by; with it the connection is encrypted or there is none."`
	Cert  string `name:"nats-cert" env:"SANDTRAIL_NATS_CERT" type:"path" placeholder:"FILE" group:"The log" help:"File with the client certificate for the NATS server; needs the key too."`
	Key   string `name:"nats-key" env:"SANDTRAIL_NATS_KEY" type:"path" placeholder:"FILE" group:"The log" help:"File with the key of the client certificate."`
	Inbox string `name:"nats-inbox" env:"SANDTRAIL_NATS_INBOX" placeholder:"SUBJECT" group:"The log" help:"Prefix of the subjects on which answers come, as the permissions of the nkey have it."`
}

// Validate reports every mistake at once; that the files can be read is part of it.
func (n NATS) Validate() error {
	var errs []error
	proofs := 0
	for _, path := range []string{n.Creds, n.Nkey, n.Token} {
		if path != "" {
			proofs++
		}
	}
	if proofs > 1 {
		errs = append(errs, errors.New("--nats-creds, --nats-nkey, --nats-token: only one of them can prove who this is"))
	}
	if (n.Cert == "") != (n.Key == "") {
		errs = append(errs, errors.New("--nats-cert, --nats-key: each needs the other"))
	}
	if n.Inbox != "" && !subject.ValidToken(n.Inbox) {
		errs = append(errs, fmt.Errorf("--nats-inbox: %q is not 1 to 64 of A-Z a-z 0-9 _ -", n.Inbox))
	}
	for _, f := range []struct{ flag, path string }{
		{"nats-creds", n.Creds}, {"nats-nkey", n.Nkey}, {"nats-token", n.Token}, {"nats-ca", n.CA}, {"nats-cert", n.Cert}, {"nats-key", n.Key},
	} {
		errs = append(errs, Readable(f.flag, f.path))
	}
	return errors.Join(errs...)
}

// Readable is why the file that a flag names cannot be read; nil also where it names none.
func Readable(flag, path string) error {
	if path == "" {
		return nil
	}
	r, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	_ = r.Close()
	return nil
}

// Options for a connection of a role, by name the one whose inbox is used where none is set. They hold for connections made anew too; an
// nkey and certificates are read now, a token for each connection.
func (n NATS) Options(role string) ([]nats.Option, error) {
	inbox := n.Inbox
	if inbox == "" {
		inbox = permission.Inbox(permission.Role(role))
	}
	options := []nats.Option{nats.CustomInboxPrefix(inbox)}
	if n.Creds != "" {
		options = append(options, nats.UserCredentials(n.Creds))
	}
	if n.Nkey != "" {
		o, err := nats.NkeyOptionFromSeed(n.Nkey)
		if err != nil {
			// The client's own error may quote what stands in the file.
			return nil, fmt.Errorf("--nats-nkey: %s does not hold the seed of a user's nkey", n.Nkey)
		}
		options = append(options, o)
	}
	if n.Token != "" {
		options = append(options, nats.TokenHandler(n.token))
	}
	if n.CA != "" {
		options = append(options, nats.RootCAs(n.CA))
	}
	if n.Cert != "" {
		options = append(options, nats.ClientCert(n.Cert, n.Key))
	}
	return options, nil
}

// token is what the file holds now; one that cannot be read proves nothing, which the server says.
func (n NATS) token() string {
	data, err := os.ReadFile(n.Token)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
