package permission

import (
	"slices"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// builder puts together what a role does, in terms of what services do: read a stream, follow it, take from a consumer.
type builder struct {
	pub, sub []string
	// own are the durable consumers that the role takes from, follows the streams that it makes short-lived consumers of.
	own, follows []string
}

func api(call string) string { return "$JS.API." + call }

// both are the two forms of subjects on which a server takes acknowledgements: newer ones name domain and account first.
func both(prefix, rest string) []string { return []string{prefix + rest, prefix + "*.*." + rest} }

func (b *builder) publish(subjects ...string)   { b.pub = append(b.pub, subjects...) }
func (b *builder) subscribe(subjects ...string) { b.sub = append(b.sub, subjects...) }

// read is by direct get, or from the leader of the stream.
func (b *builder) read(streams ...string) {
	for _, s := range streams {
		b.publish(api("DIRECT.GET."+s), api("DIRECT.GET."+s+".>"), api("STREAM.MSG.GET."+s))
	}
}

// feed makes consumers of the events with names that are nobody's, takes from them and removes them.
func (b *builder) feed() {
	const stream = topology.StreamEvents
	b.follows = append(b.follows, stream)
	b.publish(
		api("CONSUMER.CREATE."+stream+".>"), api("CONSUMER.MSG.NEXT."+stream+".*"), api("CONSUMER.DELETE."+stream+".*"),
	)
}

// pull takes from a durable consumer; those who run it also take back what was set aside of it.
func (b *builder) pull(stream, consumer string) {
	b.own = append(b.own, consumer)
	b.publish(api("CONSUMER.MSG.NEXT." + stream + "." + consumer))
	b.publish(both("$JS.ACK.", stream+"."+consumer+".>")...)
	b.redriven(consumer)
	b.read(stream) // a message that is given back is read where it stands
}

func (b *builder) redriven(consumer string) {
	b.subscribe(subject.Redrive(consumer))
	b.answer(Operator)
}

// projection remembers how far it has read.
func (b *builder) projection(name string) {
	b.bucket(topology.BucketCheckpoint, name, name+".*")
	b.redriven(name)
}

// bucket reads every entry and writes those whose keys match.
func (b *builder) bucket(name string, keys ...string) {
	b.publish(api("DIRECT.GET."+subject.BucketStream(name)), api("DIRECT.GET."+subject.BucketStream(name)+".>"))
	for _, k := range keys {
		b.publish("$KV." + name + "." + k)
	}
}

// certain is bucket for whoever also asks the leader, because a replica may not show yet what is there.
func (b *builder) certain(name string, keys ...string) {
	b.bucket(name, keys...)
	b.publish(api("STREAM.MSG.GET." + subject.BucketStream(name)))
}

// watch follows every entry of a bucket.
func (b *builder) watch(name string) {
	s := subject.BucketStream(name)
	b.publish(api("CONSUMER.CREATE."+s+".>"), api("CONSUMER.DELETE."+s+".*"))
	b.publish(both("$JS.FC.", s+".>")...)
}

// answer lets the role answer requests of another.
func (b *builder) answer(to Role) { b.publish(Inbox(to) + ".>") }

// bury sets messages aside under the name of a service.
func (b *builder) bury(service string) { b.publish("dlq." + service + ".>") }

// rules sorts what was put together, and denies what the wide names of short-lived consumers would let through: the durable consumers
// of others.
func (b *builder) rules() Rules {
	var deny []string
	for _, c := range topology.Consumers() {
		if !slices.Contains(b.follows, c.Stream) {
			continue
		}
		deny = append(deny, api("CONSUMER.CREATE."+c.Stream+"."+c.Name), api("CONSUMER.CREATE."+c.Stream+"."+c.Name+".>"),
			api("CONSUMER.DELETE."+c.Stream+"."+c.Name))
		if !slices.Contains(b.own, c.Name) {
			deny = append(deny, api("CONSUMER.MSG.NEXT."+c.Stream+"."+c.Name))
		}
	}
	return Rules{Publish: sorted(b.pub), Deny: sorted(deny), Subscribe: sorted(b.sub)}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return slices.Compact(s)
}
