package topology

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/subject"
)

// metaTenant says of whom a subscriber's consumer has events.
const metaTenant = "tenant"

// Subscriber is the consumer of somebody outside who reads the events of one tenant: from a sequence on (0: the oldest that there is), in
// order, each until it is acknowledged. It is pulled from: who may only pull cannot say where events go. A subscriber that acknowledges
// nothing has 1,000 events under way and gets no more.
func Subscriber(name, tenant string, from uint64) jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable: ConsumerSubscriber(name), FilterSubject: subject.OfTenant(tenant), AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second,
		MaxDeliver: -1, MaxAckPending: 1000, MaxWaiting: 16, Metadata: map[string]string{metaTenant: tenant},
	}
	if from > 0 {
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	return c
}

// SubscriberOf gives name and tenant of a subscriber's consumer; ok is false for every other.
func SubscriberOf(c jetstream.ConsumerConfig) (name, tenant string, ok bool) {
	name, ok = strings.CutPrefix(c.Durable, ConsumerSubscriber(""))
	return name, c.Metadata[metaTenant], ok
}
