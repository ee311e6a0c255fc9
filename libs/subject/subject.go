// Package subject names every NATS subject that Sandtrail uses. No other package spells one out: an auditor reads this one.
package subject

import (
	"fmt"
	"strings"
)

// Roots of the subject tree and what their streams capture.
const (
	Events   = "evt.>"
	Commands = "cmd.>"
	Outputs  = "out.>"
	Dead     = "dlq.>"
	Calls    = "call.>"
	// EventPrefix begins the subject of every event: evt.<tenant>.…
	EventPrefix = "evt."
	// LivePrefix is put before an event's or a chunk's subject by RePublish of its stream.
	LivePrefix = "live."
)

// Kind of aggregate.
type Kind string

const (
	KindSandbox   Kind = "sandbox"
	KindExec      Kind = "exec"
	KindTenant    Kind = "tenant"
	KindWorkspace Kind = "workspace"
	// KindName is a name that a tenant gives to its sandboxes, one after the other.
	KindName Kind = "name"
	// KindLetter is what operators decided about a dead letter.
	KindLetter Kind = "letter"
	// KindWebhook is an endpoint that a tenant has events sent to.
	KindWebhook Kind = "webhook"
	// KindBudget is what a tenant's budgets reached. What they are is an event of KindTenant.
	KindBudget Kind = "budget"
	// KindEgress is what was decided about connections out of a sandbox. What is allowed are events of KindSandbox.
	KindEgress Kind = "egress"
	// KindLog is the log itself: the signed checkpoints of one incarnation of it. Its tenant is NoTenant.
	KindLog Kind = "log"
)

// Kinds are all kinds of aggregates.
func Kinds() []Kind {
	return []Kind{KindSandbox, KindExec, KindTenant, KindWorkspace, KindName, KindWebhook, KindBudget, KindEgress, KindLetter, KindLog}
}

// NoTenant stands where a tenant would for messages whose subject names none. Nobody can be this tenant.
const NoTenant = "_none"

// maxToken bounds one level of a subject, so that six levels stay under the 256 bytes that NATS advises.
const maxToken = 64

// ValidToken reports whether s may stand as one level of a subject: tenant ids, sandbox ids, exec ids, worker names. It is 1 to
// 64 of A-Z a-z 0-9 _ -. Readers of the log call it several times for each event, so it is a loop and allocates nothing.
func ValidToken(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// ValidTenant reports whether s may be the id of a tenant.
func ValidTenant(s string) bool { return s != NoTenant && ValidToken(s) }

// Aggregate names one aggregate. ID is the sandbox's id (KindSandbox, KindWorkspace, KindEgress), the exec's (KindExec, with Sandbox set), the
// letter's, the log's, or that of a name (sandbox.NameID), and empty for KindTenant and KindBudget.
type Aggregate struct {
	Kind    Kind
	Tenant  string
	Sandbox string
	ID      string
}

// Sandbox is the aggregate of a sandbox.
func Sandbox(tenant, id string) Aggregate {
	return Aggregate{Kind: KindSandbox, Tenant: tenant, Sandbox: id, ID: id}
}

// Exec is the aggregate of an exec.
func Exec(tenant, sandbox, id string) Aggregate {
	return Aggregate{Kind: KindExec, Tenant: tenant, Sandbox: sandbox, ID: id}
}

// Workspace is the aggregate of a sandbox's workspace; its id is the sandbox's.
func Workspace(tenant, sandbox string) Aggregate {
	return Aggregate{Kind: KindWorkspace, Tenant: tenant, Sandbox: sandbox, ID: sandbox}
}

// Egress is the aggregate of what was decided about connections out of a sandbox; its id is the sandbox's.
func Egress(tenant, sandbox string) Aggregate {
	return Aggregate{Kind: KindEgress, Tenant: tenant, Sandbox: sandbox, ID: sandbox}
}

// Name is the aggregate of a name of a tenant, by the id of the name.
func Name(tenant, id string) Aggregate { return Aggregate{Kind: KindName, Tenant: tenant, ID: id} }

// Tenant is the aggregate of a tenant.
func Tenant(tenant string) Aggregate { return Aggregate{Kind: KindTenant, Tenant: tenant} }

// Budget is the aggregate of what a tenant's budgets reached.
func Budget(tenant string) Aggregate { return Aggregate{Kind: KindBudget, Tenant: tenant} }

// Webhook is the aggregate of an endpoint of a tenant.
func Webhook(tenant, id string) Aggregate {
	return Aggregate{Kind: KindWebhook, Tenant: tenant, ID: id}
}

// Letter is the aggregate of a dead letter, under the tenant whose message it is, or NoTenant.
func Letter(tenant, id string) Aggregate { return Aggregate{Kind: KindLetter, Tenant: tenant, ID: id} }

// Log is the aggregate of an incarnation of the log.
func Log(id string) Aggregate { return Aggregate{Kind: KindLog, Tenant: NoTenant, ID: id} }

// Subject is where the aggregate's whole history stands:
//
//	evt.<tenant>.sandbox.<id>  evt.<tenant>.exec.<sandbox>.<exec>  evt.<tenant>.workspace.<id>  evt.<tenant>.tenant
//	evt.<tenant>.name.<id>  evt.<tenant>.letter.<id>  evt.<tenant>.webhook.<id>  evt.<tenant>.budget
//	evt.<tenant>.egress.<sandbox>  evt._none.log.<id>
func (a Aggregate) Subject() string {
	switch a.Kind {
	case KindExec:
		return "evt." + a.Tenant + ".exec." + a.Sandbox + "." + a.ID
	case KindTenant, KindBudget:
		return "evt." + a.Tenant + "." + string(a.Kind)
	default:
		return "evt." + a.Tenant + "." + string(a.Kind) + "." + a.ID
	}
}

// Validate says whether every part may stand in a subject.
func (a Aggregate) Validate() error {
	if !ValidToken(a.Tenant) {
		return invalid(a.Tenant)
	}
	switch a.Kind {
	case KindSandbox, KindWorkspace, KindEgress, KindExec, KindName, KindWebhook, KindLetter, KindLog:
		if a.Kind == KindLog && a.Tenant != NoTenant {
			return fmt.Errorf("the log belongs to no tenant, not to %q", a.Tenant)
		}
		if a.Kind == KindExec && !ValidToken(a.Sandbox) {
			return invalid(a.Sandbox)
		}
		if !ValidToken(a.ID) {
			return invalid(a.ID)
		}
	case KindTenant, KindBudget:
	default:
		return fmt.Errorf("aggregate kind %q is unknown", a.Kind)
	}
	return nil
}

func invalid(part string) error {
	return fmt.Errorf("%q cannot be part of a subject: 1 to 64 of A-Z a-z 0-9 _ -", part)
}

// ParseEvent is the inverse of Aggregate.Subject. It takes a live subject too.
func ParseEvent(s string) (Aggregate, error) {
	// One level more than the longest subject has, so that a longer one does not pass for it.
	var t [6]string
	n := 0
	for rest, more := strings.TrimPrefix(s, LivePrefix), true; more && n < len(t); n++ {
		t[n], rest, more = strings.Cut(rest, ".")
	}
	var a Aggregate
	switch kind := Kind(t[2]); {
	case kind == KindTenant && n == 3:
		a = Tenant(t[1])
	case kind == KindBudget && n == 3:
		a = Budget(t[1])
	case kind == KindSandbox && n == 4:
		a = Sandbox(t[1], t[3])
	case kind == KindWorkspace && n == 4:
		a = Workspace(t[1], t[3])
	case kind == KindEgress && n == 4:
		a = Egress(t[1], t[3])
	case kind == KindExec && n == 5:
		a = Exec(t[1], t[3], t[4])
	case kind == KindName && n == 4:
		a = Name(t[1], t[3])
	case kind == KindWebhook && n == 4:
		a = Webhook(t[1], t[3])
	case kind == KindLetter && n == 4:
		a = Letter(t[1], t[3])
	case kind == KindLog && n == 4:
		a = Aggregate{Kind: KindLog, Tenant: t[1], ID: t[3]}
	}
	if t[0] != "evt" || a.Kind == "" || a.Validate() != nil {
		return Aggregate{}, fmt.Errorf("%q is not the subject of an event", s)
	}
	return a, nil
}

// Future reports whether s is the subject of an aggregate of a kind that this program does not know and a newer one may:
// evt.<tenant>.<kind> and more.
func Future(s string) bool {
	t := strings.Split(strings.TrimPrefix(s, LivePrefix), ".")
	if len(t) < 3 || t[0] != "evt" {
		return false
	}
	switch Kind(t[2]) {
	case KindSandbox, KindExec, KindTenant, KindWorkspace, KindName, KindWebhook, KindBudget, KindEgress, KindLetter, KindLog:
		return false
	}
	for _, token := range t[1:] {
		if !ValidToken(token) {
			return false
		}
	}
	return true
}

// Filters of events.

// AllSandboxes matches every sandbox's events: evt.*.sandbox.*
func AllSandboxes() string { return "evt.*.sandbox.*" }

// AllExecs matches every exec's events: evt.*.exec.*.*
func AllExecs() string { return "evt.*.exec.*.*" }

// AllWorkspaces matches every workspace's events: evt.*.workspace.*
func AllWorkspaces() string { return "evt.*.workspace.*" }

// AllLogs matches every signed checkpoint: evt._none.log.*
func AllLogs() string { return "evt." + NoTenant + ".log.*" }

// AllTenants matches the events of every tenant's own aggregate: evt.*.tenant
func AllTenants() string { return "evt.*.tenant" }

// AllBudgets matches what the budgets of every tenant reached: evt.*.budget
func AllBudgets() string { return "evt.*.budget" }

// AllEgress matches what was decided about connections out of every sandbox: evt.*.egress.*
func AllEgress() string { return "evt.*.egress.*" }

// AllWebhooks matches the events of every endpoint: evt.*.webhook.*
func AllWebhooks() string { return "evt.*.webhook.*" }

// OfTenant matches every event of a tenant: evt.<tenant>.>
func OfTenant(tenant string) string { return "evt." + tenant + ".>" }

// OfKind matches the events of all aggregates of a kind: evt.<tenant>.<kind>.… The tenant is any where it is empty; with a sandbox it
// matches only what is that sandbox's: evt.<tenant>.exec.<sandbox>.*
func OfKind(tenant string, kind Kind, sandbox string) string {
	if tenant == "" {
		tenant = "*"
	}
	if sandbox == "" {
		sandbox = "*"
	}
	switch kind {
	case KindExec:
		return "evt." + tenant + ".exec." + sandbox + ".*"
	case KindTenant, KindBudget:
		return "evt." + tenant + "." + string(kind)
	default:
		return "evt." + tenant + "." + string(kind) + "." + sandbox
	}
}

// AnyTenantSandbox matches a sandbox whose tenant is not known: evt.*.sandbox.<id>
func AnyTenantSandbox(id string) string { return "evt.*.sandbox." + id }

// AnySandboxExec matches an exec whose sandbox is not known, in a tenant or, where it is empty, in any: evt.<tenant>.exec.*.<exec>
func AnySandboxExec(tenant, exec string) string {
	if tenant == "" {
		tenant = "*"
	}
	return "evt." + tenant + ".exec.*." + exec
}

// ExecsOf matches the events of a sandbox's execs: evt.<tenant>.exec.<sandbox>.*
func ExecsOf(tenant, sandbox string) string { return "evt." + tenant + ".exec." + sandbox + ".*" }

// Commands.

// SandboxCommand: cmd.sandbox.<tenant>.<id>
func SandboxCommand(tenant, id string) string { return "cmd.sandbox." + tenant + "." + id }

// SandboxCommands: cmd.sandbox.>
func SandboxCommands() string { return "cmd.sandbox.>" }

// WorkerCommand: cmd.worker.<worker>.<tenant>.<id>
func WorkerCommand(worker, tenant, id string) string {
	return "cmd.worker." + worker + "." + tenant + "." + id
}

// WorkerCommands: cmd.worker.<worker>.>
func WorkerCommands(worker string) string { return "cmd.worker." + worker + ".>" }

// ExecCommand: cmd.exec.<worker>.<tenant>.<sandbox>.<exec>
func ExecCommand(worker, tenant, sandbox, exec string) string {
	return "cmd.exec." + worker + "." + tenant + "." + sandbox + "." + exec
}

// ExecCommands: cmd.exec.<worker>.>
func ExecCommands(worker string) string { return "cmd.exec." + worker + ".>" }

// Output.

// Output is where the chunks of an exec stand: out.<tenant>.<sandbox>.<exec>
func Output(tenant, sandbox, exec string) string { return "out." + tenant + "." + sandbox + "." + exec }

// Live is where RePublish of a stream repeats what it stored: live.<subject>
func Live(s string) string { return LivePrefix + s }

// Files is where a worker answers FileCall requests: svc.files.<worker>.<tenant>.<sandbox>
func Files(worker, tenant, sandbox string) string {
	return "svc.files." + worker + "." + tenant + "." + sandbox
}

// FilesOf: svc.files.<worker>.>
func FilesOf(worker string) string { return "svc.files." + worker + ".>" }

// Tunnel is where a worker answers TunnelCall requests of one tunnel: svc.tunnel.<worker>.<tenant>.<sandbox>.<tunnel>
func Tunnel(worker, tenant, sandbox, tunnel string) string {
	return "svc.tunnel." + worker + "." + tenant + "." + sandbox + "." + tunnel
}

// TunnelsOf: svc.tunnel.<worker>.>
func TunnelsOf(worker string) string { return "svc.tunnel." + worker + ".>" }

// DeadLetter: dlq.<service>.<consumer>.<original subject>
func DeadLetter(service, consumer, original string) string {
	return "dlq." + service + "." + consumer + "." + original
}

// Call is where records of a tenant's calls stand, and those of strangers under NoTenant: call.<tenant>
func Call(tenant string) string { return "call." + tenant }

// Redrive is where whoever runs a consumer of events takes RedriveCall requests for it: svc.redrive.<consumer>
func Redrive(consumer string) string { return "svc.redrive." + consumer }

// TenantOf gives the tenant whom a message of EVT, CMD or OUT belongs to by its subject, NoTenant where it names none.
func TenantOf(s string) string {
	t := strings.Split(s, ".")
	at := 1
	if t[0] == "cmd" {
		// cmd.sandbox.<tenant>.…, cmd.worker.<worker>.<tenant>.…, cmd.exec.<worker>.<tenant>.…
		at = 3
		if len(t) > 1 && t[1] == string(KindSandbox) {
			at = 2
		}
	}
	if (t[0] != "evt" && t[0] != "cmd" && t[0] != "out") || at >= len(t) || !ValidTenant(t[at]) {
		return NoTenant
	}
	return t[at]
}

// Readers is where a gateway that follows an exec answers whether somebody reads it: svc.readers.<tenant>.<sandbox>.<exec>
func Readers(tenant, sandbox, exec string) string {
	return "svc.readers." + tenant + "." + sandbox + "." + exec
}

// BucketStream is the stream behind a KV bucket: KV_<bucket>
func BucketStream(bucket string) string { return "KV_" + bucket }

// BucketKey is the subject of a key of a bucket: $KV.<bucket>.<key>
func BucketKey(bucket, key string) string { return "$KV." + bucket + "." + key }

// BucketKeys matches the keys of a tenant in a bucket whose keys begin with it, of every tenant where it is empty:
// $KV.<bucket>.<tenant>.>
func BucketKeys(bucket, tenant string) string {
	if tenant == "" {
		return "$KV." + bucket + ".>"
	}
	return "$KV." + bucket + "." + tenant + ".>"
}

// Usage is where a usage service answers UsageQuery requests: svc.usage
func Usage() string { return "svc.usage" }
