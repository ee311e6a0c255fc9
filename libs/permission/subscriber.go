package permission

import (
	"fmt"
	"strings"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Subscriber is somebody outside who reads the events of one tenant with any client of NATS, and nothing else. He has an account of his
// own: users of one account could have JetStream's answers sent to any subject of it, so that one who may read could also write.
// Answers that cross accounts go to a subject of the server's choice. The rules of accounts are those of
// https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts.
type Subscriber struct {
	// Name is one token, of the subscriber's consumer and account: see topology.ConsumerSubscriber.
	Name, Tenant string
	// Nkey is as in User.
	Nkey string
}

// SubscriberPrefix stands in the place of $JS.API for a subscriber: what begins with that his own account answers, which has no JetStream.
const SubscriberPrefix = "LOG.API"

func (s Subscriber) validate() error {
	switch {
	case !subject.ValidToken(s.Name):
		return fmt.Errorf("subscriber: %q is not a name: 1 to 64 of A-Z a-z 0-9 _ -", s.Name)
	case !subject.ValidTenant(s.Tenant):
		return fmt.Errorf("subscriber %s: %q is not a tenant", s.Name, s.Tenant)
	case !ValidNkey(s.Nkey) && !variable(s.Nkey):
		return fmt.Errorf("subscriber %s: its nkey is neither the public key of a user nor a variable", s.Name)
	}
	return nil
}

// account is the subscriber's.
func (s Subscriber) account() string { return "subscriber-" + s.Name }

// calls are what he asks the log: his consumer's next events and how it stands, and his acknowledgements. He makes no consumer: what one
// delivers, and where, is for who made it.
func (s Subscriber) calls() []string {
	const stream = topology.StreamEvents
	name := topology.ConsumerSubscriber(s.Name)
	return append([]string{api("CONSUMER.MSG.NEXT." + stream + "." + name), api("CONSUMER.INFO." + stream + "." + name)},
		both("$JS.ACK.", stream+"."+name+".>")...)
}

// live are events as they are recorded: they come once and to whoever is there.
func (s Subscriber) live() string { return subject.Live(subject.OfTenant(s.Tenant)) }

// Exports renders what the account of the services shows to a subscriber, as entries of its list of exports.
func (s Subscriber) Exports() (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	var out strings.Builder
	for _, c := range s.calls() {
		kind := ""
		if strings.Contains(c, ".MSG.NEXT.") {
			kind = ", response_type: stream" // many answers to one request
		}
		fmt.Fprintf(&out, "{ service: %q, accounts: [%q]%s }\n", c, s.account(), kind)
	}
	fmt.Fprintf(&out, "{ stream: %q, accounts: [%q] }\n", s.live(), s.account())
	return out.String(), nil
}

// Account renders the subscriber's account, as an entry of accounts; services is the account of the services.
func (s Subscriber) Account(services string) (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%q {\n  users = [{ nkey: %s }]\n  imports = [\n", s.account(), s.Nkey)
	for _, c := range s.calls() {
		as := ""
		if call, is := strings.CutPrefix(c, api("")); is {
			as = fmt.Sprintf(", to: %q", SubscriberPrefix+"."+call)
		}
		fmt.Fprintf(&out, "    { service: { account: %q, subject: %q }%s }\n", services, c, as)
	}
	fmt.Fprintf(&out, "    { stream: { account: %q, subject: %q } }\n  ]\n}\n", services, s.live())
	return out.String(), nil
}
