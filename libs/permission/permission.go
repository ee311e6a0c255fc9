// Package permission says, as data, what each service may publish and subscribe to on NATS: what it uses and nothing else. Subjects come
// from package subject, streams, buckets and consumers from package topology, so that a subject which changes there changes here.
//
// What it bounds is what a service does by mistake and what a stolen key can do directly. JetStream itself answers wherever a request
// says, with the server's own rights: who may read a stream could have the answer sent to a subject that it may not publish to. A
// service is trusted with the log as far as that.
package permission

import (
	"fmt"
	"slices"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Role is who connects.
type Role string

// Roles. Worker and Exec are those of one worker.
const (
	Gateway   Role = "gateway"
	Scheduler Role = "scheduler"
	Worker    Role = "worker"
	Exec      Role = "exec"
	Usage     Role = "usage"
	GC        Role = "gc"
	// Operator is a person with the CLI: dead letters and looks at the log.
	Operator Role = "operator"
	// Provisioner makes streams, buckets and consumers and reads nothing.
	Provisioner Role = "provisioner"
	// Host is Worker and Exec of one worker in one process (sandtrail worker), which also makes the worker's own consumers. An installation
	// has one for each host that joins it, so it is none of Roles.
	Host Role = "host"
)

// Roles are all roles, in the order of their rendering.
func Roles() []Role {
	return []Role{Gateway, Scheduler, Worker, Exec, Usage, GC, Operator, Provisioner}
}

// Inbox is the prefix under which a role gets its answers. Who may publish below it may answer that role.
func Inbox(r Role) string { return "_INBOX_" + string(r) }

// Rules are filters of subjects. What Deny names may not be published although Publish allows it.
type Rules struct {
	Publish, Deny, Subscribe []string
}

// Of gives the rules of a role. worker is the name of the worker that Worker, Exec and Host belong to, or that Provisioner makes consumers
// for; the others know none.
func Of(r Role, worker string) (Rules, error) {
	needs := r == Worker || r == Exec || r == Provisioner || r == Host
	if needs && !subject.ValidToken(worker) {
		return Rules{}, fmt.Errorf("rules of %s: %q is not a worker name: 1 to 64 of A-Z a-z 0-9 _ -", r, worker)
	}
	b := &builder{}
	b.subscribe(Inbox(r) + ".>")
	b.publish(api("STREAM.INFO.*"), api("CONSUMER.INFO.*.*"))
	switch r {
	case Gateway:
		gateway(b)
	case Scheduler:
		scheduler(b)
	case Worker:
		hostWorker(b, worker)
	case Exec:
		exec(b, worker)
	case Host:
		hostWorker(b, worker)
		exec(b, worker)
		// With the filter in the subject: the server holds a request to it, so that nobody else's commands come by it.
		b.publish(
			api("CONSUMER.CREATE."+topology.StreamCommands+"."+topology.ConsumerWorker(worker)+"."+subject.WorkerCommands(worker)),
			api("CONSUMER.CREATE."+topology.StreamCommands+"."+topology.ConsumerExec(worker)+"."+subject.ExecCommands(worker)),
		)
	case Usage:
		usage(b)
	case GC:
		gc(b)
	case Operator:
		operator(b)
	case Provisioner:
		provisioner(b, worker)
	default:
		return Rules{}, fmt.Errorf("%q is not a role", r)
	}
	return b.rules(), nil
}

func gateway(b *builder) {
	b.publish(
		subject.SandboxCommand("*", "*"), subject.ExecCommand("*", "*", "*", "*"),
		subject.Files("*", "*", "*"), subject.Tunnel("*", "*", "*", "*"), subject.Readers("*", "*", "*"), subject.Usage(),
	)
	b.subscribe(subject.Live(subject.Events), subject.Live(subject.Outputs), subject.Readers("*", "*", "*"))
	b.answer(Gateway)
	b.publish(subject.Call("*"))
	b.read(topology.StreamEvents, topology.StreamOutput)
	b.bucket(topology.BucketSandbox)
	b.bucket(topology.BucketExec)
	b.certain(topology.BucketWorker)
	// A worker that was removed from the list: its heartbeats may go, but none may be written.
	b.publish(api("STREAM.PURGE." + subject.BucketStream(topology.BucketWorker)))
	b.publish(subject.AllTenants())                   // keys that an administrator of a tenant makes and revokes
	b.certain(topology.BucketIdem, "*.*.*", "*.keys") // keys that are claimed, and how many a tenant has
	b.bucket(topology.BucketKey, "*.*")
	b.bucket(topology.BucketQuota)
	b.bucket(topology.BucketLease, topology.LeaseTalk("*"))
}

// lifecycle is what its two roles have in common: the view of all sandboxes and the places they take up.
func lifecycle(b *builder) {
	b.read(topology.StreamEvents)
	b.feed()
	b.publish(subject.Sandbox("*", "*").Subject(), subject.Name("*", "*").Subject(), api("STREAM.LIST"))
	b.projection(topology.ProjectionSandboxView)
	b.bucket(topology.BucketSandbox, ">")
	b.watch(topology.BucketSandbox)
	b.bucket(topology.BucketPlace, ">")
	b.watch(topology.BucketPlace)
	b.bucket(topology.BucketQuota, "*")
	b.watch(topology.BucketQuota)
	b.bury("lifecycle")
}

func scheduler(b *builder) {
	lifecycle(b)
	b.pull(topology.StreamCommands, topology.ConsumerScheduler)
	b.publish(subject.WorkerCommand("*", "*", "*"))
	b.answer(Gateway)
	b.certain(topology.BucketIdem, "*.refused.*")
	b.bucket(topology.BucketWorker)
	b.watch(topology.BucketWorker)
}

func hostWorker(b *builder, worker string) {
	lifecycle(b)
	b.pull(topology.StreamCommands, topology.ConsumerWorker(worker))
	b.publish(subject.Workspace("*", "*").Subject())
	b.subscribe(subject.Live(subject.AllSandboxes()))
	b.bucket(topology.BucketWorker, worker)
	b.bucket(topology.BucketLease, "*."+worker) // one for each task that only one of the worker's processes does
	b.projection(topology.ProjectionStarts(worker))
}

func exec(b *builder, worker string) {
	b.read(topology.StreamEvents, topology.StreamOutput)
	b.feed()
	b.pull(topology.StreamCommands, topology.ConsumerExec(worker))
	b.pull(topology.StreamEvents, topology.ConsumerSettle)
	b.publish(subject.AllExecs(), subject.AllEgress(), subject.Output("*", "*", "*"), subject.Readers("*", "*", "*"))
	b.subscribe(subject.FilesOf(worker), subject.TunnelsOf(worker), subject.Live(subject.AllSandboxes()))
	b.answer(Gateway)
	b.bucket(topology.BucketExec, ">")
	b.watch(topology.BucketExec)
	b.bucket(topology.BucketSandbox) // which sandboxes may connect to somewhere
	b.watch(topology.BucketSandbox)
	b.bucket(topology.BucketQuota, "*.execs")
	b.watch(topology.BucketQuota)
	b.projection(topology.ProjectionReceipt)
	b.bury("exec")
}

func usage(b *builder) {
	b.read(topology.StreamEvents)
	b.feed()
	b.subscribe(subject.Usage())
	b.publish(subject.AllBudgets()) // what they reached; what they are is not for this service to say
	b.answer(Gateway)
	b.projection(topology.CheckpointUsage)
	b.publish(api("CONSUMER.DELETE." + topology.StreamEvents + "." + topology.RetiredUsage))
	b.bury("usage")
}

func gc(b *builder) {
	b.read(topology.StreamEvents, topology.StreamOutput)
	b.pull(topology.StreamEvents, topology.ConsumerGC)
	b.feed()
	b.publish(subject.SandboxCommand("*", "*"), subject.WorkerCommand("*", "*", "*"), subject.AllLogs())
	b.bucket(topology.BucketLease, topology.LeaseSign, topology.LeaseWebhook)
	// Webhooks: endpoints, how far each is, and what of it is given back.
	b.publish(subject.AllWebhooks())
	b.subscribe(subject.Live(subject.Events), subject.Redrive("*"))
	b.bucket(topology.BucketCheckpoint, topology.CheckpointWebhook("*"))
	b.answer(Operator)
	b.bucket(topology.BucketSandbox)
	b.watch(topology.BucketSandbox)
	b.bucket(topology.BucketExec)
	b.publish(api("STREAM.PURGE."+topology.StreamOutput), api("STREAM.PURGE."+subject.BucketStream(topology.BucketSandbox)))
	b.bury("gc")
}

func operator(b *builder) {
	b.read(topology.StreamEvents, topology.StreamCommands, topology.StreamOutput, topology.StreamDead, topology.StreamAdvisories, topology.StreamCalls)
	b.feed()
	for _, name := range topology.Buckets() {
		b.bucket(name)
		b.watch(name)
	}
	b.bucket(topology.BucketLease, topology.LeaseRebuild)
	b.publish(
		api("STREAM.LIST"), api("STREAM.NAMES"), api("CONSUMER.LIST.*"), api("CONSUMER.NAMES.*"), api("INFO"),
		// A letter that is given back goes where it came from; what is decided about it is recorded, and it is removed.
		subject.Commands, subject.Redrive("*"), subject.Letter("*", "*").Subject(), api("STREAM.MSG.DELETE."+topology.StreamDead),
		subject.AllTenants(), // tenants, their keys, quotas and budgets
		subject.AllWebhooks(),
	)
	b.subscribe(subject.Live(subject.Events), subject.Live(subject.Outputs))
}

func provisioner(b *builder, worker string) {
	// What there is, and what the server can do, is asked first.
	b.publish(api("INFO"), api("STREAM.LIST"), api("CONSUMER.LIST.*"))
	for _, name := range topology.Streams() {
		b.publish(api("STREAM.CREATE."+name), api("STREAM.UPDATE."+name))
	}
	for _, c := range slices.Concat(topology.Consumers(), topology.WorkerConsumers(worker)) {
		b.publish(api("CONSUMER.CREATE."+c.Stream+"."+c.Name), api("CONSUMER.CREATE."+c.Stream+"."+c.Name+".>"))
	}
}
