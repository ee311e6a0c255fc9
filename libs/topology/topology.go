// Package topology says which streams, buckets and consumers exist and how they are set, as data. Nothing else creates one:
// a consumer made on a hot path costs 80 ms of a replicated cluster, a stream made by hand differs from the next one.
package topology

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Streams.
const (
	StreamEvents     = "EVT"
	StreamCommands   = "CMD"
	StreamOutput     = "OUT"
	StreamDead       = "DLQ"
	StreamAdvisories = "ADV"
	StreamCalls      = "CALL"
)

// Buckets.
const (
	// BucketSandbox holds the current view of each sandbox, BucketExec the receipt of each exec.
	BucketSandbox = "sandbox"
	BucketExec    = "exec"
	// BucketIdem holds idempotency keys for a day, BucketName the names that tenants gave to sandboxes.
	BucketIdem = "idem"
	BucketName = "name"
	// BucketWorker holds heartbeats; an entry that was not renewed for WorkerTTL is gone.
	BucketWorker = "worker"
	// BucketLease holds leases; one that was not renewed for LeaseTTL is gone.
	BucketLease = "lease"
	// BucketPlace holds which sandboxes take up a place of a worker.
	BucketPlace = "place"
	// BucketQuota holds what tenants use of their quotas.
	BucketQuota = "quota"
	// BucketKey holds when each API key was used last.
	BucketKey = "key"
	// BucketCheckpoint holds how far each projection has read.
	BucketCheckpoint = "checkpoint"
)

// LeaseSign is the entry of BucketLease of whoever signs the log.
const LeaseSign = "sign.log"

// LeaseWebhook is that of whoever sends events to webhooks.
const LeaseWebhook = "webhook.log"

// CheckpointWebhook is in BucketCheckpoint how far an endpoint has been sent events.
func CheckpointWebhook(id string) string { return "webhook." + id }

// ConsumerWebhook names an endpoint in dead letters; no consumer has this name.
func ConsumerWebhook(id string) string { return "webhook-" + id }

// ConsumerSubscriber is the consumer of somebody outside who reads the events of one tenant with a client of NATS.
func ConsumerSubscriber(name string) string { return "subscriber-" + name }

// LeaseRebuild is the entry of BucketLease of whoever makes the rows of usage anew.
const LeaseRebuild = "rebuild.usage"

// LeaseTalk is the entry of BucketLease of who talks to an exec, or to all of one sandbox; what is its id.
func LeaseTalk(what string) string { return "talk." + what }

// Durable consumers.
const (
	ConsumerScheduler = "lifecycle-scheduler-v1"
	ConsumerSettle    = "exec-settle-v1"
	ConsumerGC        = "gc-work-v1"
)

// Checkpoints in BucketCheckpoint of readers that are not projections of libs/projection.
const CheckpointUsage = "usage-clickhouse-v1"

// Projections of libs/projection, by the keys of their checkpoints: name and version.
const (
	ProjectionSandboxView = "sandbox-view-v1"
	ProjectionReceipt     = "exec-receipt-v1"
)

// ProjectionStarts counts how the sandboxes of a worker start.
func ProjectionStarts(worker string) string { return StartsName(worker) + "-v1" }

// StartsName is the name of that projection, a token also where the worker's name leaves no room for a prefix.
func StartsName(worker string) string {
	if name := "starts-" + worker; subject.ValidToken(name + "-v1") {
		return name
	}
	return "starts-" + ids.Derive("starts", worker)
}

// RetiredUsage is the durable consumer of usage services that acknowledged each event. Whoever goes on from it removes it.
const RetiredUsage = "usage-clickhouse-v1"

// ConsumerWorker is the consumer of a worker's sandbox commands.
func ConsumerWorker(worker string) string { return "lifecycle-worker-" + worker + "-v1" }

// ConsumerExec is the consumer of a worker's exec commands.
func ConsumerExec(worker string) string { return "exec-run-" + worker + "-v1" }

// Metadata keys of streams.
const (
	// MetaIncarnation names one life of a stream: sequences of another incarnation mean nothing. Set once, when it is created.
	MetaIncarnation = "incarnation"
	// MetaContract is the version of what a stream's messages mean.
	MetaContract = "contract"
)

// Bounds.
const (
	// MaxEventSize bounds an event with its headers, in bytes.
	MaxEventSize = eventlog.MaxEventSize
	// MaxChunkSize bounds a message of output with its headers, in bytes.
	MaxChunkSize = 256 << 10
	// MaxCommandSize bounds a command with its headers, in bytes. It leaves room under the 2 MiB that the server takes for what
	// a dead letter adds to it.
	MaxCommandSize = 2<<20 - 64<<10

	// CallsPerTenant is how many records of calls are kept for each tenant, and for strangers together; the oldest go.
	CallsPerTenant = 1_000_000

	// WorkerTTL is how long a heartbeat lasts, LeaseTTL how long a lease does.
	WorkerTTL = time.Minute
	LeaseTTL  = 30 * time.Second
	// IdemTTL is how long an idempotency key is remembered.
	IdemTTL = 24 * time.Hour
	// CommandTTL is how long a command waits: behind it the stream forgets it.
	CommandTTL = 24 * time.Hour
	// ReceiptTTL is how long the bucket exec holds a receipt; the log has it for ever.
	ReceiptTTL = 30 * 24 * time.Hour
)

const (
	day = 24 * time.Hour
	// ackWait is after how long without a sign of life a message is given to somebody again: what was on its way to a worker that died,
	// or got lost with a connection, waits that long. Workers give a sign at a third of it for as long as they have the message.
	ackWait         = 4 * time.Second
	contractVersion = "1"
)

// Options are what differs from one installation to another. The zero value is a single small host.
type Options struct {
	// Replicas of every stream and bucket, at least: 1 or 3. By default 1. What has more keeps them.
	Replicas int
	// EventsMaxBytes bounds the log. When it is full appends are refused; nothing is ever forgotten. By default 32 GiB.
	EventsMaxBytes int64
	// OutputMaxBytes bounds all transcripts; when full the oldest go. By default 8 GiB.
	OutputMaxBytes int64
	// OutputMaxAge is how long a transcript is kept, by default 7 days.
	OutputMaxAge time.Duration
	// Given says that somebody else makes and changes streams, buckets and consumers: Ensure and EnsureWorker then only check that
	// they exist. It is for processes that have no right to make them.
	Given bool
}

func (o Options) withDefaults() Options {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.EventsMaxBytes == 0 {
		o.EventsMaxBytes = 32 << 30
	}
	if o.OutputMaxBytes == 0 {
		o.OutputMaxBytes = 8 << 30
	}
	if o.OutputMaxAge == 0 {
		o.OutputMaxAge = 7 * day
	}
	return o
}

// streams are all streams. Every field that the server would fill in is spelled out, so that Diff compares like with like.
func streams(o Options) []jetstream.StreamConfig {
	base := func(name, about string, subjects ...string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: name, Description: about, Subjects: subjects,
			Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
			Replicas: o.Replicas, MaxConsumers: -1, MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1,
			Compression: jetstream.S2Compression, AllowDirect: true,
			Metadata: map[string]string{MetaContract: contractVersion},
		}
	}
	republish := func(source string) *jetstream.RePublish {
		return &jetstream.RePublish{Source: source, Destination: subject.Live(source)}
	}

	evt := base(StreamEvents, "Every event of every aggregate, for ever", subject.Events)
	evt.MaxBytes, evt.MaxMsgSize = o.EventsMaxBytes, MaxEventSize
	evt.DenyDelete = true
	// Decompressed blocks are garbage that each reader of the log makes the server collect (ADR 22).
	evt.Compression = jetstream.NoCompression
	evt.AllowAtomicPublish = true
	evt.Duplicates = 10 * time.Minute
	evt.RePublish = republish(subject.Events)

	cmd := base(StreamCommands, "Commands that wait for their worker", subject.Commands)
	cmd.Retention = jetstream.WorkQueuePolicy
	// A command stands here for milliseconds, and a block is compressed again each time its last command is taken.
	cmd.Compression = jetstream.NoCompression
	cmd.MaxAge, cmd.MaxBytes, cmd.MaxMsgSize = CommandTTL, 4<<30, MaxCommandSize
	cmd.Duplicates = 10 * time.Minute

	out := base(StreamOutput, "Transcripts of execs", subject.Outputs)
	out.Discard = jetstream.DiscardOld
	out.MaxAge, out.MaxBytes, out.MaxMsgSize = o.OutputMaxAge, o.OutputMaxBytes, MaxChunkSize
	// The server holds every id of the window in memory, 150 bytes each: at 30,000 chunks a second a longer window costs more
	// than it gives, because chunks are published behind an expected sequence anyway.
	out.Duplicates = 30 * time.Second
	out.RePublish = republish(subject.Outputs)

	dlq := base(StreamDead, "Messages that no handler could take", subject.Dead)
	dlq.MaxAge, dlq.MaxBytes = 30*day, 2<<30
	dlq.Discard = jetstream.DiscardOld
	dlq.Duplicates = 10 * time.Minute

	adv := base(StreamAdvisories, "What JetStream gave up on",
		"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
		"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>")
	adv.MaxAge, adv.MaxBytes = 30*day, 64<<20
	adv.Discard = jetstream.DiscardOld
	adv.Duplicates = 2 * time.Minute

	// A tenant that calls much pushes out its own records only.
	call := base(StreamCalls, "Records of callers' requests", subject.Calls)
	call.Discard = jetstream.DiscardOld
	call.MaxMsgsPerSubject = CallsPerTenant
	call.MaxAge, call.MaxBytes, call.MaxMsgSize = 90*day, 8<<30, 8<<10
	call.Duplicates = 2 * time.Minute

	return []jetstream.StreamConfig{evt, cmd, out, dlq, adv, call}
}

// buckets are all buckets. When one is full, writes to it are refused.
func buckets(o Options) []jetstream.KeyValueConfig {
	base := func(name, about string, ttl time.Duration, maxBytes int64) jetstream.KeyValueConfig {
		return jetstream.KeyValueConfig{
			Bucket: name, Description: about, History: 1, TTL: ttl, MaxBytes: maxBytes, MaxValueSize: 256 << 10,
			Storage: jetstream.FileStorage, Replicas: o.Replicas,
			Metadata: map[string]string{MetaContract: contractVersion},
		}
	}
	// Heartbeats and leases say something about now only, yet they are stored in files too: a bucket in memory is itself gone
	// after a restart of the server, and whoever writes to it fails until somebody ensures the topology again.
	announced := func(c jetstream.KeyValueConfig) jetstream.KeyValueConfig {
		// A watcher must learn that an entry ran out, not only that it was not renewed.
		c.LimitMarkerTTL = 2 * time.Minute
		return c
	}
	large := func(c jetstream.KeyValueConfig) jetstream.KeyValueConfig {
		c.MaxValueSize = 1 << 20
		return c
	}
	return []jetstream.KeyValueConfig{
		base(BucketSandbox, "Current view of each sandbox", 0, 2<<30),
		base(BucketExec, "Receipt of each exec", ReceiptTTL, 4<<30),
		base(BucketIdem, "Idempotency keys", IdemTTL, 1<<30),
		base(BucketName, "Names that tenants gave to sandboxes", 0, 256<<20),
		announced(base(BucketWorker, "Heartbeats of workers", WorkerTTL, 16<<20)),
		announced(base(BucketLease, "Leases", LeaseTTL, 16<<20)),
		base(BucketPlace, "Sandboxes that take up a place of a worker", 0, 256<<20),
		large(base(BucketQuota, "What tenants use of their quotas", 0, 1<<30)),
		base(BucketKey, "When each API key was used last", 0, 64<<20),
		base(BucketCheckpoint, "How far each projection has read", 0, 256<<20),
	}
}

// Streams names every stream that there is, those behind buckets included.
func Streams() []string {
	var names []string
	for _, s := range streams(Options{}) {
		names = append(names, s.Name)
	}
	for _, b := range buckets(Options{}) {
		names = append(names, subject.BucketStream(b.Bucket))
	}
	return names
}

// Buckets names every bucket.
func Buckets() []string {
	var names []string
	for _, b := range buckets(Options{}) {
		names = append(names, b.Bucket)
	}
	return names
}

// Durable is a durable consumer by its names.
type Durable struct{ Stream, Name string }

// Consumers names the durable consumers that exist once.
func Consumers() []Durable { return durables(consumers()) }

// WorkerConsumers names those of one worker.
func WorkerConsumers(worker string) []Durable { return durables(workerConsumers(worker)) }

func durables(all []consumer) []Durable {
	var names []Durable
	for _, c := range all {
		names = append(names, Durable{Stream: c.stream, Name: c.config.Durable})
	}
	return names
}

// consumer is a durable pull consumer of a stream.
type consumer struct {
	stream string
	config jetstream.ConsumerConfig
}

func durable(stream, name, about string, maxAckPending int, filters ...string) consumer {
	c := jetstream.ConsumerConfig{
		Durable: name, Name: name, Description: about,
		DeliverPolicy: jetstream.DeliverAllPolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		// The worker decides when a message is poison; a server that stops delivering would lose it silently.
		MaxDeliver: -1, MaxAckPending: maxAckPending, MaxWaiting: 512,
		Metadata: map[string]string{MetaContract: contractVersion},
	}
	if len(filters) == 1 {
		c.FilterSubject = filters[0]
	} else {
		c.FilterSubjects = filters
	}
	return consumer{stream: stream, config: c}
}

// consumers are those that exist once.
func consumers() []consumer {
	return []consumer{
		durable(StreamCommands, ConsumerScheduler, "Decides what happens to sandboxes", 256, subject.SandboxCommands()),
		durable(StreamEvents, ConsumerSettle, "Settles the execs of sandboxes that are gone", 256, subject.AllSandboxes()),
		durable(StreamEvents, ConsumerGC, "Removes what is over", 256, subject.AllSandboxes(), subject.AllWorkspaces()),
	}
}

// workerConsumers are those of one worker.
func workerConsumers(worker string) []consumer {
	return []consumer{
		durable(StreamCommands, ConsumerWorker(worker), "Materialises sandboxes on worker "+worker, 256,
			subject.WorkerCommands(worker)),
		durable(StreamCommands, ConsumerExec(worker), "Runs commands on worker "+worker, 1024, subject.ExecCommands(worker)),
	}
}
