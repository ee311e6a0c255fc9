package permission_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	worker  = "w1"
	another = "w2"
)

// guarded starts a server with the rendered configuration and gives a connection for each role.
func guarded(t *testing.T) map[permission.Role]*nats.Conn {
	t.Helper()
	var users []permission.User
	pairs := map[permission.Role]nkeys.KeyPair{}
	for _, r := range permission.Roles() {
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		public, err := pair.PublicKey()
		require.NoError(t, err)
		rules, err := permission.Of(r, worker)
		require.NoError(t, err)
		variable := "SANDTRAIL_NKEY_" + strings.ToUpper(string(r))
		t.Setenv(variable, public)
		users, pairs[r] = append(users, permission.User{Nkey: "$" + variable, Rules: rules}), pair
	}
	text, err := permission.Authorization(users...)
	require.NoError(t, err)
	s := natstest.Configured(t, text)

	conns := map[permission.Role]*nats.Conn{}
	for r, pair := range pairs {
		public, err := pair.PublicKey()
		require.NoError(t, err)
		// Refusals are asked for; the client would print each.
		nc, err := nats.Connect(s.ClientURL(), nats.Nkey(public, pair.Sign), nats.CustomInboxPrefix(permission.Inbox(r)),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		require.NoError(t, err, r)
		t.Cleanup(nc.Close)
		conns[r] = nc
	}
	_, err = nats.Connect(s.ClientURL())
	require.ErrorIs(t, err, nats.ErrAuthorization, "nobody is let in without a key")
	return conns
}

type act struct {
	name, subject string
	subscribe     bool
	// may are those who may do it; all others are refused.
	may []permission.Role
}

func refused(t *testing.T, nc *nats.Conn, a act) bool {
	t.Helper()
	if a.subscribe {
		sub, err := nc.SubscribeSync(a.subject)
		require.NoError(t, err)
		defer func() { _ = sub.Unsubscribe() }()
	} else {
		require.NoError(t, nc.Publish(a.subject, []byte("{}")))
	}
	// The server says what it refuses before it answers the flush.
	require.NoError(t, nc.FlushTimeout(time.Minute))
	err := nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+a.subject+`"`)
}

const (
	gateway, scheduler, host, exec = permission.Gateway, permission.Scheduler, permission.Worker, permission.Exec
	usage, gc, operator, provision = permission.Usage, permission.GC, permission.Operator, permission.Provisioner
)

func roles(r ...permission.Role) []permission.Role { return r }

// acts are what somebody would do who wants to see, forge, hide or break something.
func acts() []act {
	pub := func(name, subject string, may ...permission.Role) act {
		return act{name: name, subject: subject, may: may}
	}
	sub := func(name, subject string, may ...permission.Role) act {
		return act{name: name, subject: subject, subscribe: true, may: may}
	}
	js := func(name, call string, may ...permission.Role) act { return pub(name, "$JS.API."+call, may...) }
	return slices.Concat([]act{
		pub("forge what happened to a sandbox", subject.Sandbox("acme", "s").Subject(), scheduler, host),
		pub("forge the end of an exec", subject.Exec("acme", "s", "x").Subject(), exec),
		pub("forge the end of a workspace", subject.Workspace("acme", "s").Subject(), host),
		pub("change a tenant: its keys, quotas and budget", subject.Tenant("acme").Subject(), gateway, operator),
		pub("say what a budget reached", subject.Budget("acme").Subject(), usage),
		pub("forge what was decided about connections out of a sandbox", subject.Egress("acme", "s").Subject(), exec),
		pub("forge what was decided about a letter", subject.Letter("acme", "l").Subject(), operator),
		pub("sign the log", subject.Log("l").Subject(), gc),
		pub("forge the record of a call", subject.Call("acme"), gateway),
		pub("take the lease of signing", "$KV."+topology.BucketLease+"."+topology.LeaseSign, gc),
		pub("forge output", subject.Output("acme", "s", "x"), exec),
		pub("forge live output", subject.Live(subject.Output("acme", "s", "x"))),
		pub("forge a live event", subject.Live(subject.Sandbox("acme", "s").Subject())),
		pub("change a webhook", subject.Webhook("acme", "w").Subject(), gc, operator),
		pub("take the lease of webhooks", "$KV."+topology.BucketLease+"."+topology.LeaseWebhook, gc),
		pub("store how far a webhook is", "$KV."+topology.BucketCheckpoint+"."+topology.CheckpointWebhook("w"), gc),
		pub("ask for a sandbox", subject.SandboxCommand("acme", "s"), gateway, gc, operator),
		pub("command a worker", subject.WorkerCommand(worker, "acme", "s"), scheduler, gc, operator),
		pub("run a command", subject.ExecCommand(worker, "acme", "s", "x"), gateway, operator),
		pub("read files", subject.Files(worker, "acme", "s"), gateway),
		pub("talk to a port of a sandbox", subject.Tunnel(worker, "acme", "s", "t"), gateway),
		pub("read bills", subject.Usage(), gateway),
		pub("redrive a letter", subject.Redrive(topology.ConsumerScheduler), operator),
		pub("bury a command of lifecycle", subject.DeadLetter("lifecycle", "c", "cmd.x"), scheduler, host),
		pub("bury an event of usage", subject.DeadLetter("usage", "c", "evt.x"), usage),
		pub("answer the gateway", permission.Inbox(gateway)+".x", gateway, scheduler, exec, usage),
		pub("answer the operator", permission.Inbox(operator)+".x", scheduler, host, exec, usage, gc),
		pub("answer a worker", permission.Inbox(host)+".x"),
		pub("pretend to be a worker", "$KV."+topology.BucketWorker+"."+worker, host),
		pub("pretend to be another worker", "$KV."+topology.BucketWorker+"."+another),
		pub("change a view", "$KV."+topology.BucketSandbox+".acme.s", scheduler, host),
		pub("change a receipt", "$KV."+topology.BucketExec+".acme.s.x", exec),
		pub("say when a key was used", "$KV."+topology.BucketKey+".acme.k", gateway),
		pub("change a claim of idempotency", "$KV."+topology.BucketIdem+".acme.CreateSandbox.x", gateway),
		pub("count a tenant's keys of idempotency", "$KV."+topology.BucketIdem+".acme.keys", gateway),
		pub("remember that a create was refused", "$KV."+topology.BucketIdem+".acme.refused.7", gateway, scheduler),
		pub("take places", "$KV."+topology.BucketPlace+".worker.w", scheduler, host),
		pub("change what a tenant's sandboxes use", "$KV."+topology.BucketQuota+".acme", scheduler, host),
		pub("change what a tenant's execs use", "$KV."+topology.BucketQuota+".acme.execs", exec),
		pub("skip what is to be billed", "$KV."+topology.BucketCheckpoint+"."+topology.CheckpointUsage, usage),
		pub("skip what views show", "$KV."+topology.BucketCheckpoint+"."+topology.ProjectionSandboxView, scheduler, host),
		pub("take the lease of a conversation", "$KV."+topology.BucketLease+"."+topology.LeaseTalk("x"), gateway),
		pub("take the worker's lease", "$KV."+topology.BucketLease+".reconcile."+worker, host),
		pub("take another worker's lease", "$KV."+topology.BucketLease+".reconcile."+another),
		pub("make rows of usage anew", "$KV."+topology.BucketLease+"."+topology.LeaseRebuild, operator),
		pub("reach the system", "$SYS.REQ.SERVER.PING"),

		js("read the log", "DIRECT.GET."+topology.StreamEvents, gateway, scheduler, host, exec, usage, gc, operator),
		js("read output", "DIRECT.GET."+topology.StreamOutput, gateway, exec, gc, operator),
		js("read commands", "DIRECT.GET."+topology.StreamCommands, scheduler, host, exec, operator),
		js("read who called", "DIRECT.GET."+topology.StreamCalls, operator),
		js("purge who called", "STREAM.PURGE."+topology.StreamCalls),
		js("read dead letters", "DIRECT.GET."+topology.StreamDead, operator),
		js("take commands of the scheduler", "CONSUMER.MSG.NEXT.CMD."+topology.ConsumerScheduler, scheduler),
		js("take commands of the worker", "CONSUMER.MSG.NEXT.CMD."+topology.ConsumerWorker(worker), host),
		js("take commands of another worker", "CONSUMER.MSG.NEXT.CMD."+topology.ConsumerWorker(another)),
		js("take execs of the worker", "CONSUMER.MSG.NEXT.CMD."+topology.ConsumerExec(worker), exec),
		js("take execs of another worker", "CONSUMER.MSG.NEXT.CMD."+topology.ConsumerExec(another)),
		js("take events of gc", "CONSUMER.MSG.NEXT.EVT."+topology.ConsumerGC, gc),
		js("take events of settling", "CONSUMER.MSG.NEXT.EVT."+topology.ConsumerSettle, exec),
		js("remove what settles execs", "CONSUMER.DELETE.EVT."+topology.ConsumerSettle),
		js("change what settles execs", "CONSUMER.CREATE.EVT."+topology.ConsumerSettle+"."+subject.AllSandboxes(), provision),
		js("change gc's consumer", "CONSUMER.CREATE.EVT."+topology.ConsumerGC, provision),
		js("follow the log", "CONSUMER.CREATE.EVT.anybody", scheduler, host, exec, usage, gc, operator),
		js("make a consumer the old way", "CONSUMER.DURABLE.CREATE.EVT.mine"),
		js("make a consumer of commands", "CONSUMER.CREATE.CMD.mine"),
		js("make the worker's consumer", "CONSUMER.CREATE.CMD."+topology.ConsumerWorker(worker)+"."+subject.WorkerCommands(worker), provision),
		js("remove a letter", "STREAM.MSG.DELETE."+topology.StreamDead, operator),
		js("remove an event", "STREAM.MSG.DELETE."+topology.StreamEvents),
		js("purge the log", "STREAM.PURGE."+topology.StreamEvents),
		js("purge output", "STREAM.PURGE."+topology.StreamOutput, gc),
		js("forget a worker that is silent", "STREAM.PURGE."+subject.BucketStream(topology.BucketWorker), gateway),
		js("purge views", "STREAM.PURGE."+subject.BucketStream(topology.BucketSandbox), gc),
		js("remove the log", "STREAM.DELETE."+topology.StreamEvents),
		js("change the log", "STREAM.UPDATE."+topology.StreamEvents, provision),
		js("see the account", "INFO", operator, provision),
		js("make a stream of one's own", "STREAM.CREATE.mine"),
		js("restore a stream", "STREAM.RESTORE."+topology.StreamEvents),
		js("take a copy of the log", "STREAM.SNAPSHOT."+topology.StreamEvents),

		pub("acknowledge for the scheduler", "$JS.ACK.CMD."+topology.ConsumerScheduler+".1.1.1.1.0", scheduler),
		pub("acknowledge for another worker", "$JS.ACK.CMD."+topology.ConsumerExec(another)+".1.1.1.1.0"),

		sub("listen to everything", ">"),
		sub("listen to commands", subject.Commands),
		sub("listen to appends", subject.Events),
		sub("watch all that happens", subject.Live(subject.Events), gateway, gc, operator),
		sub("watch all output", subject.Live(subject.Outputs), gateway, operator),
		sub("watch sandboxes", subject.Live(subject.AllSandboxes()), gateway, host, exec, gc, operator),
		sub("serve files", subject.FilesOf(worker), exec),
		sub("serve files of another worker", subject.FilesOf(another)),
		sub("serve the ports of its sandboxes", subject.TunnelsOf(worker), exec),
		sub("serve the ports of another worker's", subject.TunnelsOf(another)),
		sub("serve bills", subject.Usage(), usage),
		sub("see every inbox", "_INBOX.>"),
		sub("be redriven as usage", subject.Redrive(topology.CheckpointUsage), usage, gc),
	}, inboxes())
}

func inboxes() []act {
	var all []act
	for _, r := range permission.Roles() {
		all = append(all, act{name: "read the answers of " + string(r), subject: permission.Inbox(r) + ".>", subscribe: true, may: roles(r)})
	}
	return all
}

func TestEachRoleMayDoWhatItDoesAndIsRefusedWhatOthersDo(t *testing.T) {
	conns := guarded(t)
	for _, a := range acts() {
		for _, r := range permission.Roles() {
			require.Equal(t, !slices.Contains(a.may, r), refused(t, conns[r], a), "%s: %s (%s), refused", r, a.name, a.subject)
		}
	}
}

func TestRulesAreNotWiderThanTheyLook(t *testing.T) {
	for _, r := range permission.Roles() {
		rules, err := permission.Of(r, worker)
		require.NoError(t, err)
		for _, s := range slices.Concat(rules.Publish, rules.Subscribe) {
			first, _, _ := strings.Cut(s, ".")
			require.NotContains(t, []string{">", "*", ""}, first, "%s may %s", r, s)
			require.NotContains(t, []string{"$JS.API.>", "$JS.>", "$JS.ACK.>", "$KV.>", "_INBOX.>", "evt.>", "live.>"}, s, "%s", r)
		}
	}
}

func TestRulesNeedAWorkerWhoseNameIsAToken(t *testing.T) {
	for _, r := range roles(host, exec, provision) {
		for _, name := range []string{"", "*", ">", "a.b"} {
			_, err := permission.Of(r, name)
			require.Error(t, err, "%s of %q", r, name)
		}
	}
	_, err := permission.Of("nobody", worker)
	require.Error(t, err)
}

func TestAuthorizationTakesKeysAndVariablesOnly(t *testing.T) {
	seed, err := nkeys.CreateUser()
	require.NoError(t, err)
	secret, err := seed.Seed()
	require.NoError(t, err)
	for _, key := range []string{"", "$", "$a", "U", "x\n}", string(secret)} {
		_, err := permission.Authorization(permission.User{Nkey: key})
		require.Error(t, err)
		require.NotContains(t, err.Error(), string(secret))
	}
}

func TestAHostMakesItsOwnConsumersAndNobodyElses(t *testing.T) {
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	rules, err := permission.Of(permission.Host, worker)
	require.NoError(t, err)
	for _, r := range roles(host, exec) {
		part, err := permission.Of(r, worker)
		require.NoError(t, err)
		for _, s := range slices.Concat(part.Publish, part.Subscribe) {
			if !strings.HasPrefix(s, permission.Inbox(r)) {
				require.Contains(t, slices.Concat(rules.Publish, rules.Subscribe), s, "%s of %s", s, r)
			}
		}
	}
	everything := permission.Rules{Publish: []string{">"}, Subscribe: []string{">"}}
	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	all, err := other.PublicKey()
	require.NoError(t, err)
	text, err := permission.Authorization(permission.User{Nkey: public, Rules: rules}, permission.User{Nkey: all, Rules: everything})
	require.NoError(t, err)
	s := natstest.Configured(t, text)
	connect := func(pair nkeys.KeyPair, public string) jetstream.JetStream {
		nc, err := nats.Connect(s.ClientURL(), nats.Nkey(public, pair.Sign), nats.CustomInboxPrefix(permission.Inbox(permission.Host)),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		return js
	}
	require.NoError(t, topology.Ensure(t.Context(), connect(other, all), topology.Options{}))

	js := connect(pair, public)
	require.NoError(t, topology.Ensure(t.Context(), js, topology.Options{Given: true}))
	require.NoError(t, topology.EnsureWorker(t.Context(), js, worker, topology.Options{}))
	c, err := js.Consumer(t.Context(), topology.StreamCommands, topology.ConsumerExec(worker))
	require.NoError(t, err)
	require.Equal(t, subject.ExecCommands(worker), c.CachedInfo().Config.FilterSubject)

	// What it may not make is what brings it others' commands: their consumers, and its own with another filter.
	for _, a := range []act{
		{subject: "$JS.API.CONSUMER.CREATE.CMD." + topology.ConsumerExec(another) + "." + subject.ExecCommands(another)},
		{subject: "$JS.API.CONSUMER.CREATE.CMD." + topology.ConsumerExec(worker) + "." + subject.ExecCommands(another)},
		{subject: "$JS.API.CONSUMER.CREATE.CMD." + topology.ConsumerExec(worker)},
		{subject: "$KV." + topology.BucketWorker + "." + another},
		{subject: subject.SandboxCommand("acme", "s")},
		{subject: subject.FilesOf(another), subscribe: true},
	} {
		require.True(t, refused(t, js.Conn(), a), a.subject)
	}
	_, err = permission.Of(permission.Host, "a.b")
	require.Error(t, err)
}
