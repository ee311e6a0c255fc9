package cli

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/webhook"
)

// Webhook is `sandtrail webhook`.
type Webhook struct {
	Create WebhookCreate `cmd:"" help:"Have a tenant's events sent to a URL, and print the secret that they are signed with, this once."`
	List   WebhookList   `cmd:"" aliases:"ls" help:"List webhooks and how far they are."`
	Delete WebhookDelete `cmd:"" help:"Send nothing more."`
	Rotate WebhookRotate `cmd:"" help:"Sign with a new secret, and print it, this once."`
	Replay WebhookReplay `cmd:"" help:"Send everything from a sequence on again; enables one that was disabled."`
	Test   WebhookTest   `cmd:"" help:"Send one message and show what came of it."`
}

// Sealing are the flags of commands that make secrets.
type Sealing struct {
	Key string `name:"webhook-key" env:"SANDTRAIL_WEBHOOK_KEY" default:"${state}/keys/webhook.key" type:"path" placeholder:"FILE" help:"Key that secrets are sealed with; gc has the same. Default: that of up."`
}

func (s *Sealing) secret(tenant, id string) (webhook.Secret, []byte, error) {
	// One that was made here would be another one than gc has.
	if _, err := os.Stat(s.Key); err != nil {
		return webhook.Secret{}, nil, usagef("--webhook-key: %w; up makes it as STATE/keys/webhook.key", err)
	}
	k, err := seal.Load(s.Key)
	if err != nil {
		return webhook.Secret{}, nil, usagef("--webhook-key: %w", err)
	}
	secret := webhook.NewSecret()
	sealed, err := secret.Seal(k, tenant, id)
	return secret, sealed, err
}

// endpoint carries a command out on a webhook and gives it as it is then.
func (a *Administering) endpoint(e *Env, tenant, id string, make func(context.Context, jetstream.JetStream) (webhook.Command, error)) (webhook.Endpoint, error) {
	if !subject.ValidTenant(tenant) || !subject.ValidToken(id) {
		return webhook.Endpoint{}, usagef("%q and %q are not the ids of a tenant and a webhook", tenant, id)
	}
	ctx, js, done, err := a.connect(e, permission.Operator)
	if err != nil {
		return webhook.Endpoint{}, err
	}
	defer done()
	c, err := make(ctx, js)
	if err != nil {
		return webhook.Endpoint{}, ended(ctx, err)
	}
	p, err := webhook.Execute(ctx, jslog.New(js), tenant, id, ids.New(), "operator:"+operatorName(a.Operator), time.Now(), c)
	return p, ended(ctx, err)
}

func just(c webhook.Command) func(context.Context, jetstream.JetStream) (webhook.Command, error) {
	return func(context.Context, jetstream.JetStream) (webhook.Command, error) { return c, nil }
}

// webhookJSON is a webhook as programs get it; the secret only where it was just made.
type webhookJSON struct {
	Secret      string    `json:"secret,omitempty"`
	WebhookID   string    `json:"webhook_id"`
	TenantID    string    `json:"tenant_id"`
	URL         string    `json:"url"`
	Description string    `json:"description,omitempty"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty"`
	Filter      string    `json:"filter"`
	SecretID    string    `json:"secret_id"`
	CreatedAt   time.Time `json:"created_at"`
	// After is up to which sequence everything was sent; null: not known yet. Failing is how many events have failed and are tried again.
	After   *uint64 `json:"after"`
	Failing int     `json:"failing"`
}

func webhookOf(p webhook.Endpoint) webhookJSON {
	out := webhookJSON{
		WebhookID: p.ID, TenantID: p.Tenant, URL: p.URL, Description: p.Description, State: p.State(), Reason: p.Disabled, Filter: p.Filter.Topic(), CreatedAt: p.CreatedAt,
	}
	if len(p.Secrets) > 0 {
		out.SecretID = p.Secrets[0].ID
	}
	return out
}

func (l *Log) showWebhook(e *Env, p webhook.Endpoint, s *webhook.Secret) error {
	out := webhookOf(p)
	if s != nil {
		out.Secret = s.Reveal()
	}
	if l.json() {
		return render.Value(e.Stdout, out)
	}
	err := render.Fields(e.Stdout, []render.Field{
		{Name: "Secret", Value: out.Secret},
		{Name: "Id", Value: p.ID},
		{Name: "Tenant", Value: p.Tenant},
		{Name: "URL", Value: p.URL},
		{Name: "Events", Value: out.Filter},
		{Name: "State", Value: strings.TrimSpace(out.State + " " + out.Reason)},
		{Name: "Signed with", Value: out.SecretID},
	})
	if s != nil {
		e.warn("this is the only time that the secret is shown")
	}
	return err
}

// WebhookCreate is `sandtrail webhook create`.
type WebhookCreate struct {
	Administering
	Sealing
	Tenant      string   `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose events."`
	URL         string   `arg:"" help:"Where they are sent: https://…"`
	Type        []string `placeholder:"TYPE" help:"Only these types, e.g. ExecCompleted."`
	Kind        []string `placeholder:"KIND" help:"Only those of these aggregates: sandbox, exec, workspace, tenant."`
	Sandbox     string   `placeholder:"ID" help:"Only those of one sandbox."`
	From        *uint64  `placeholder:"SEQ" help:"Begin with this sequence. Default: with what happens next."`
	Description string   `placeholder:"TEXT" help:"What it is for."`
	Private     bool     `help:"Allow http:// and addresses that are not public; gc must allow them too (--webhook-private)."`
}

// Run makes it.
func (c *WebhookCreate) Run(e *Env) error {
	for _, t := range c.Type {
		if !events.Known(t) {
			return usagef("--type: there is no event %q", t)
		}
	}
	f := events.Filter{Tenant: c.Tenant, Types: c.Type, Sandbox: strings.ToLower(c.Sandbox)}
	for _, k := range c.Kind {
		f.Kinds = append(f.Kinds, subject.Kind(k))
	}
	id := ids.New()
	secret, sealed, err := c.secret(c.Tenant, id)
	if err != nil {
		return err
	}
	p, err := c.endpoint(e, c.Tenant, id, func(ctx context.Context, js jetstream.JetStream) (webhook.Command, error) {
		now, err := cursor.BoundsOf(ctx, js)
		if err != nil {
			return nil, err
		}
		after := now.Last
		if c.From != nil {
			after = max(*c.From, 1) - 1
		}
		return webhook.Create{
			URL: c.URL, Description: c.Description, Filter: f, Sealed: sealed, SecretID: secret.ID, After: after, Guard: webhook.Guard{Private: c.Private},
		}, nil
	})
	if err != nil {
		return err
	}
	return c.showWebhook(e, p, &secret)
}

// Named are the flags that name one webhook.
type Named struct {
	Tenant string `required:"" env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Whose it is."`
	ID     string `arg:"" help:"Its id, as in the list."`
}

// WebhookRotate is `sandtrail webhook rotate`.
type WebhookRotate struct {
	Administering
	Sealing
	Named
	Overlap time.Duration `default:"24h" placeholder:"AGE" help:"How long the old secret signs as well, 168h at most. Default: ${default}."`
}

// Run rotates the secret.
func (c *WebhookRotate) Run(e *Env) error {
	if c.Overlap < 0 {
		return usagef("--overlap: an age is not negative")
	}
	secret, sealed, err := c.secret(c.Tenant, c.ID)
	if err != nil {
		return err
	}
	now := time.Now()
	p, err := c.endpoint(e, c.Tenant, c.ID, just(webhook.Rotate{Sealed: sealed, SecretID: secret.ID, At: now, PreviousUntil: now.Add(c.Overlap)}))
	if err != nil {
		return err
	}
	return c.showWebhook(e, p, &secret)
}

// WebhookDelete is `sandtrail webhook delete`.
type WebhookDelete struct {
	Administering
	Named
	Note string `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run deletes it.
func (c *WebhookDelete) Run(e *Env) error {
	p, err := c.endpoint(e, c.Tenant, c.ID, just(webhook.Delete{Note: c.Note}))
	if err != nil {
		return err
	}
	return c.showWebhook(e, p, nil)
}

// WebhookReplay is `sandtrail webhook replay`.
type WebhookReplay struct {
	Administering
	Named
	From uint64 `required:"" placeholder:"SEQ" help:"First sequence to send again."`
	Note string `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// Run asks for a replay.
func (c *WebhookReplay) Run(e *Env) error {
	p, err := c.endpoint(e, c.Tenant, c.ID, just(webhook.Replay{From: c.From, Note: c.Note}))
	if err != nil {
		return err
	}
	return c.showWebhook(e, p, nil)
}

// WebhookTest is `sandtrail webhook test`.
type WebhookTest struct {
	Administering
	Named
	Wait time.Duration `default:"30s" help:"How long to wait for the outcome. Default: ${default}."`
}

// testLook is how often the log is asked for the outcome of a test.
const testLook = 200 * time.Millisecond

// Run asks for a test and waits for its outcome.
func (c *WebhookTest) Run(e *Env) error {
	p, err := c.endpoint(e, c.Tenant, c.ID, just(webhook.Test{}))
	if err != nil {
		return err
	}
	ctx, js, done, err := c.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	log, deadline := jslog.New(js), time.Now().Add(c.Wait)
	tick := time.NewTicker(testLook)
	defer tick.Stop()
	for {
		h, err := log.Load(ctx, subject.Webhook(c.Tenant, c.ID))
		if err != nil {
			return ended(ctx, err)
		}
		if now := webhook.Fold(h); now.TestID == p.TestID && now.Tested != nil {
			return c.show(e, now)
		}
		if time.Now().After(deadline) {
			return fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, "no outcome yet; is gc running, with --webhook-key?")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *WebhookTest) show(e *Env, p webhook.Endpoint) error {
	if c.json() {
		if err := render.One(e.Stdout, p.Tested); err != nil {
			return err
		}
	} else {
		e.warn("%s", render.Happened(p.Tested))
	}
	if !p.Tested.GetDelivered() {
		return exitError(ExitRefused)
	}
	return nil
}

// WebhookList is `sandtrail webhook list`.
type WebhookList struct {
	Log
	Tenant string `env:"SANDTRAIL_TENANT" placeholder:"ID" help:"Only those of a tenant."`
	All    bool   `help:"Also those that were deleted."`
}

// Run lists them.
func (l *WebhookList) Run(e *Env) error {
	if l.Tenant != "" && !subject.ValidTenant(l.Tenant) {
		return usagef("%q is not the id of a tenant", l.Tenant)
	}
	ctx, js, done, err := l.connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	all, err := webhooks(ctx, js, l.Tenant)
	if err != nil {
		return ended(ctx, err)
	}
	out := []webhookJSON{}
	t := render.Table{Header: []string{"WEBHOOK", "TENANT", "URL", "EVENTS", "STATE", "SENT TO", "FAILING", "AGE"}}
	for _, p := range all {
		if p.Deleted && !l.All {
			continue
		}
		x := webhookOf(p)
		sent := ""
		if x.After, x.Failing = standing(ctx, js, p.ID); x.After != nil {
			sent = number(*x.After)
		}
		out = append(out, x)
		t.Rows = append(t.Rows, []string{p.ID, p.Tenant, p.URL, x.Filter, strings.TrimSpace(x.State + " " + x.Reason), sent, number(uint64(x.Failing)), age(p.CreatedAt)}) //nolint:gosec // a count
	}
	if l.json() {
		return render.Value(e.Stdout, out)
	}
	return t.Write(e.Stdout)
}

// webhooks reads all webhooks from the log, oldest first.
func webhooks(ctx context.Context, js jetstream.JetStream, tenant string) ([]webhook.Endpoint, error) {
	var order []string
	byID := map[string]webhook.Endpoint{}
	err := directget.Each(ctx, js, topology.StreamEvents, subject.OfKind(tenant, subject.KindWebhook, ""), 1, func(m directget.Message) error {
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil {
			return err
		}
		r, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return err
		}
		p, there := byID[agg.ID]
		if !there {
			p = webhook.Endpoint{Tenant: agg.Tenant, ID: agg.ID}
			order = append(order, agg.ID)
		}
		byID[agg.ID] = p.Evolve(r)
		return nil
	})
	all := make([]webhook.Endpoint, 0, len(order))
	for _, id := range order {
		all = append(all, byID[id])
	}
	return all, err
}

// standing is how far a webhook is, as gc has stored it a moment ago. It is a courtesy: what cannot be read is not shown.
func standing(ctx context.Context, js jetstream.JetStream, id string) (after *uint64, failing int) {
	key := subject.BucketKey(topology.BucketCheckpoint, topology.CheckpointWebhook(id))
	found, err := directget.Last(ctx, js, subject.BucketStream(topology.BucketCheckpoint), key, 1)
	if err != nil || len(found) == 0 {
		return nil, 0
	}
	var p struct {
		After    uint64         `json:"after"`
		Attempts map[string]int `json:"attempts"`
	}
	if json.Unmarshal(found[0].Data, &p) != nil {
		return nil, 0
	}
	return &p.After, len(p.Attempts)
}
