package cli

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Subscriber is `sandtrail subscriber`.
type Subscriber struct {
	Create SubscriberCreate `cmd:"" help:"Keep a place in a tenant's events for somebody who reads them with a NATS client of his own."`
	List   SubscriberList   `cmd:"" aliases:"ls" help:"List subscribers and how far they are."`
	Delete SubscriberDelete `cmd:"" help:"Give the place up."`
	Config SubscriberConfig `cmd:"" help:"Print what the configuration of your NATS server needs, so that a subscriber reaches his tenant's events and nothing else."`
}

// SubscriberName is the argument that names one.
type SubscriberName struct {
	Name string `arg:"" help:"His name: 1 to 64 of A-Z a-z 0-9 _ -"`
}

func (s SubscriberName) check() error {
	if !subject.ValidToken(s.Name) {
		return usagef("%q is not a name: 1 to 64 of A-Z a-z 0-9 _ -", s.Name)
	}
	return nil
}

// subscriberJSON is a subscriber as programs get it.
type subscriberJSON struct {
	Name     string `json:"name"`
	TenantID string `json:"tenant_id"`
	Stream   string `json:"stream"`
	Consumer string `json:"consumer"`
	// Acknowledged is up to which sequence he has acknowledged everything that is his; Pending is how many events he has not asked for yet,
	// UnderWay how many he has and has not acknowledged, Again how many of those came more than once.
	Acknowledged uint64     `json:"acknowledged"`
	Pending      uint64     `json:"pending"`
	UnderWay     int        `json:"under_way"`
	Again        int        `json:"again"`
	LastSeenAt   *time.Time `json:"last_seen_at"`
}

func subscriberOf(info *jetstream.ConsumerInfo) (subscriberJSON, bool) {
	name, tenant, ok := topology.SubscriberOf(info.Config)
	return subscriberJSON{
		Name: name, TenantID: tenant, Stream: info.Stream, Consumer: info.Name, Acknowledged: info.AckFloor.Stream, Pending: info.NumPending,
		UnderWay: info.NumAckPending, Again: info.NumRedelivered, LastSeenAt: info.Delivered.Last,
	}, ok
}

// SubscriberCreate is `sandtrail subscriber create`.
type SubscriberCreate struct {
	Log
	SubscriberName
	Tenant string `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose events."`
	From   uint64 `placeholder:"SEQ" help:"Begin with this sequence. Default: with the oldest event that there is."`
}

// Run makes the consumer. One that is there and the same is left as it is.
func (c *SubscriberCreate) Run(e *Env) error {
	if err := c.check(); err != nil {
		return err
	}
	if !subject.ValidTenant(c.Tenant) {
		return usagef("%q is not the id of a tenant: 1 to 64 of A-Z a-z 0-9 _ -", c.Tenant)
	}
	ctx, js, done, err := c.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	made, err := js.CreateConsumer(ctx, topology.StreamEvents, topology.Subscriber(c.Name, c.Tenant, c.From))
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return fault.New(fault.Conflict, fault.ReasonNameTaken, "there is a subscriber of this name, of another tenant or with another beginning")
	}
	if err != nil {
		return ended(ctx, err)
	}
	out, _ := subscriberOf(made.CachedInfo())
	if c.json() {
		return render.Value(e.Stdout, out)
	}
	return render.Fields(e.Stdout, []render.Field{
		{Name: "Name", Value: out.Name},
		{Name: "Tenant", Value: out.TenantID},
		{Name: "Stream", Value: out.Stream},
		{Name: "Consumer", Value: out.Consumer},
		{Name: "Pending", Value: strconv.FormatUint(out.Pending, 10)},
	})
}

// SubscriberList is `sandtrail subscriber list`.
type SubscriberList struct {
	Log
	Tenant string `placeholder:"ID" help:"Only those of one tenant."`
}

// Run lists them by name.
func (l *SubscriberList) Run(e *Env) error {
	ctx, js, done, err := l.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	stream, err := js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return ended(ctx, err)
	}
	all := []subscriberJSON{}
	consumers := stream.ListConsumers(ctx)
	for info := range consumers.Info() {
		if s, ok := subscriberOf(info); ok && (l.Tenant == "" || s.TenantID == l.Tenant) {
			all = append(all, s)
		}
	}
	if err := consumers.Err(); err != nil {
		return ended(ctx, err)
	}
	slices.SortFunc(all, func(a, b subscriberJSON) int { return strings.Compare(a.Name, b.Name) })
	if l.json() {
		return render.Value(e.Stdout, all)
	}
	table := render.Table{Header: []string{"NAME", "TENANT", "ACKNOWLEDGED", "PENDING", "UNDER WAY", "AGAIN", "LAST SEEN"}}
	for _, s := range all {
		seen := "never"
		if s.LastSeenAt != nil {
			seen = s.LastSeenAt.UTC().Format(time.RFC3339)
		}
		table.Rows = append(table.Rows, []string{
			s.Name, s.TenantID, strconv.FormatUint(s.Acknowledged, 10), strconv.FormatUint(s.Pending, 10), strconv.Itoa(s.UnderWay), strconv.Itoa(s.Again), seen,
		})
	}
	return table.Write(e.Stdout)
}

// SubscriberDelete is `sandtrail subscriber delete`.
type SubscriberDelete struct {
	Log
	SubscriberName
}

// Run removes the consumer.
func (d *SubscriberDelete) Run(e *Env) error {
	if err := d.check(); err != nil {
		return err
	}
	ctx, js, done, err := d.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	err = js.DeleteConsumer(ctx, topology.StreamEvents, topology.ConsumerSubscriber(d.Name))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fault.New(fault.NotFound, fault.ReasonSubscriberNotFound, "there is no subscriber of this name")
	}
	return ended(ctx, err)
}

// SubscriberConfig is `sandtrail subscriber config`.
type SubscriberConfig struct {
	SubscriberName
	Tenant  string `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose events."`
	Nkey    string `required:"" placeholder:"U…" help:"Public key of his nkey, as nk -gen user -pubout prints it. The seed stays with him."`
	Account string `default:"SANDTRAIL" help:"Account of the services on your server: ${default} unless you say otherwise."`
}

// Run prints the blocks.
func (c *SubscriberConfig) Run(e *Env) error {
	s := permission.Subscriber{Name: c.Name, Tenant: c.Tenant, Nkey: c.Nkey}
	exports, err := s.Exports()
	if err != nil {
		return usagef("%v", err)
	}
	if !subject.ValidToken(c.Account) {
		return usagef("%q is not the name of an account", c.Account)
	}
	account, err := s.Account(c.Account)
	if err != nil {
		return usagef("%v", err)
	}
	_, err = e.Stdout.Write([]byte("# among the exports of " + c.Account + "\n" + exports + "\n# among the accounts\n" + account))
	return err
}
