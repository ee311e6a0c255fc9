package permission

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"
)

// User is somebody who proves by an nkey that it is who it is.
type User struct {
	// Nkey is the public key, U… (56 characters). In a configuration that a server reads it may be $NAME, a variable of its environment.
	Nkey string
	Rules
}

// ValidNkey reports whether s is the public key of a user.
func ValidNkey(s string) bool { return nkeys.IsValidPublicUserKey(s) }

// Authorization renders users as the authorization block of a NATS server's configuration.
func Authorization(users ...User) (string, error) {
	list, err := userList(users)
	return "authorization {\n" + list + "}\n", err
}

// Accounts renders the same with accounts: that of the services, which holds the log, and one for each subscriber. It takes the place of
// the authorization block. A log that was made without accounts is in none of them.
func Accounts(services string, users []User, subscribers ...Subscriber) (string, error) {
	var exports, accounts strings.Builder
	list, err := userList(users)
	errs := []error{err}
	for _, s := range subscribers {
		shown, err := s.Exports()
		account, other := s.Account(services)
		errs = append(errs, err, other)
		exports.WriteString(shown)
		accounts.WriteString(account)
	}
	return "accounts {\n" + services + " {\n  jetstream: enabled\n" + list + "  exports = [\n" + exports.String() + "  ]\n}\n" + accounts.String() + "}\n", errors.Join(errs...)
}

func userList(users []User) (string, error) {
	var out strings.Builder
	out.WriteString("  users = [\n")
	for _, u := range users {
		one, err := Entry(u)
		if err != nil {
			return "", err
		}
		out.WriteString(one)
	}
	out.WriteString("  ]\n")
	return out.String(), nil
}

// Entry renders one user as an entry of a list of users.
func Entry(u User) (string, error) {
	if !ValidNkey(u.Nkey) && !variable(u.Nkey) {
		return "", errors.New("an nkey is neither the public key of a user nor a variable")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "    {\n      nkey: %s\n      permissions: {\n        publish: {\n", u.Nkey)
	list(&out, "allow", u.Publish)
	list(&out, "deny", u.Deny)
	out.WriteString("        }\n        subscribe: {\n")
	list(&out, "allow", u.Subscribe)
	out.WriteString("        }\n      }\n    }\n")
	return out.String(), nil
}

// width of a line of subjects: a role has a hundred of them.
const width = 120

func list(out *strings.Builder, name string, subjects []string) {
	if len(subjects) == 0 {
		return
	}
	fmt.Fprintf(out, "          %s: [", name)
	column := width
	for i, s := range subjects {
		text := strconv.Quote(s)
		if i < len(subjects)-1 {
			text += ", "
		}
		if column+len(text) > width {
			out.WriteString("\n            ")
			column = 12
		}
		out.WriteString(text)
		column += len(text)
	}
	out.WriteString("\n          ]\n")
}

func variable(s string) bool {
	if len(s) < 2 || s[0] != '$' {
		return false
	}
	for _, c := range s[1:] {
		if (c < 'A' || c > 'Z') && c != '_' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
