package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Difference is one setting that is not as it should be. Field is the name of the setting in the server's API, with Want and
// Have as JSON; where the whole thing is missing Field is "exists", Want "true" and Have "false".
type Difference struct {
	// Name of the stream, bucket or consumer.
	Name  string
	Field string
	Want  string
	Have  string
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s is %s, should be %s", d.Name, d.Field, d.Have, d.Want)
}

const fieldExists = "exists"

func missing(name string) Difference {
	return Difference{Name: name, Field: fieldExists, Want: "true", Have: "false"}
}

func (d Difference) missing() bool { return d == missing(d.Name) }

// Diff lists what Ensure would make or change, and changes nothing. What a worker needs is not part of it: see DiffWorker.
func Diff(ctx context.Context, js jetstream.JetStream, o Options) ([]Difference, error) {
	o = o.withDefaults()
	var all []Difference
	for _, want := range streams(o) {
		found, _, err := diffStream(ctx, js, want)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	for _, want := range buckets(o) {
		found, _, err := diffBucket(ctx, js, want)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return diffConsumers(ctx, js, all, consumers())
}

// diffStream compares one stream; info is nil where it is missing.
func diffStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) ([]Difference, *jetstream.StreamInfo, error) {
	have, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return []Difference{missing(want.Name)}, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read stream %s: %w", want.Name, err)
	}
	info := have.CachedInfo()
	want.Replicas = max(want.Replicas, info.Config.Replicas)
	all := compare(want.Name, want, info.Config)
	if info.Config.Metadata[MetaIncarnation] == "" {
		all = append(all, Difference{Name: want.Name, Field: "metadata." + MetaIncarnation, Want: "any", Have: "null"})
	}
	return all, info, nil
}

// diffBucket compares one bucket; status is nil where it is missing.
func diffBucket(ctx context.Context, js jetstream.JetStream, want jetstream.KeyValueConfig) ([]Difference, jetstream.KeyValueStatus, error) {
	have, err := js.KeyValue(ctx, want.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return []Difference{missing(want.Bucket)}, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read bucket %s: %w", want.Bucket, err)
	}
	status, err := have.Status(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read bucket %s: %w", want.Bucket, err)
	}
	want.Replicas = max(want.Replicas, status.Config().Replicas)
	return compare(want.Bucket, want, status.Config()), status, nil
}

// DiffWorker lists what EnsureWorker would make or change, and changes nothing.
func DiffWorker(ctx context.Context, js jetstream.JetStream, worker string, _ Options) ([]Difference, error) {
	return diffConsumers(ctx, js, nil, workerConsumers(worker))
}

func diffConsumers(ctx context.Context, js jetstream.JetStream, all []Difference, want []consumer) ([]Difference, error) {
	for _, c := range want {
		have, err := js.Consumer(ctx, c.stream, c.config.Durable)
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
			all = append(all, missing(c.config.Durable))
		case err != nil:
			return nil, fmt.Errorf("read consumer %s: %w", c.config.Durable, err)
		default:
			all = append(all, compare(c.config.Durable, c.config, have.CachedInfo().Config)...)
		}
	}
	return all, nil
}

// compare lists the settings in which have differs from want, by their names in the server's API. Of the metadata only what
// want has counts: the server and operators add their own.
func compare(name string, want, have any) []Difference {
	w, h := settings(want), settings(have)
	var all []Difference
	for field := range h {
		if _, ok := w[field]; !ok && !strings.HasPrefix(field, "metadata.") {
			w[field] = nil
		}
	}
	for field, value := range w {
		if !same(value, h[field]) {
			all = append(all, Difference{Name: name, Field: field, Want: text(value), Have: text(h[field])})
		}
	}
	slices.SortFunc(all, func(a, b Difference) int { return strings.Compare(a.Field, b.Field) })
	return all
}

// settings flattens a configuration to its fields; nested ones are joined by dots.
func settings(config any) map[string]any {
	var nested map[string]any
	if data, err := json.Marshal(config); err == nil {
		_ = json.Unmarshal(data, &nested)
	}
	flat := map[string]any{}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for k, v := range m {
			if sub, ok := v.(map[string]any); ok {
				walk(prefix+k+".", sub)
				continue
			}
			flat[prefix+k] = v
		}
	}
	walk("", nested)
	return flat
}

// same treats an absent field like its zero value, as the server does.
func same(a, b any) bool {
	return reflect.DeepEqual(a, b) || (empty(a) && empty(b))
}

func empty(v any) bool {
	if v == nil {
		return true
	}
	if list, ok := v.([]any); ok {
		return len(list) == 0
	}
	return reflect.ValueOf(v).IsZero()
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
