package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/subject"
)

// Risks says in sentences what of the topology could keep the log worse than the servers behind it would allow: streams and buckets
// that stand on one server of a cluster. What is missing is no risk: see Diff.
func Risks(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	var alone []string
	cluster := ""
	look := func(name, shown string) error {
		s, err := js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stream %s: %w", name, err)
		}
		// A server by itself is in no cluster.
		if info := s.CachedInfo(); info.Config.Replicas < 2 && info.Cluster != nil && info.Cluster.Name != "" {
			alone, cluster = append(alone, shown), info.Cluster.Name
		}
		return nil
	}
	for _, c := range streams(Options{}) {
		if err := look(c.Name, c.Name); err != nil {
			return nil, err
		}
	}
	for _, c := range buckets(Options{}) {
		if err := look(subject.BucketStream(c.Bucket), "bucket "+c.Bucket); err != nil {
			return nil, err
		}
	}
	if len(alone) == 0 {
		return nil, nil
	}
	return []string{fmt.Sprintf(
		"%s stand on one server of cluster %s each: when its disk is lost they are lost, and while it is away they are; start a service with --replicas 3",
		strings.Join(alone, ", "), cluster)}, nil
}
