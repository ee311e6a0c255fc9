package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Ensure makes every stream, bucket and shared consumer that is missing and brings the others to their settings. It may run
// any number of times, also at the same time in several processes. It keeps the incarnation of a stream that exists, takes no
// replica away from it (a service started without its flag would make the log less safe for all), deletes nothing, and refuses a change that would make the server drop stored messages with fault.FailedPrecondition.
func Ensure(ctx context.Context, js jetstream.JetStream, o Options) error {
	o = o.withDefaults()
	if o.Given {
		return given(Diff(ctx, js, o))
	}
	for _, c := range streams(o) {
		if err := ensureStream(ctx, js, c); err != nil {
			return fmt.Errorf("ensure stream %s: %w", c.Name, err)
		}
	}
	for _, c := range buckets(o) {
		if err := ensureBucket(ctx, js, c); err != nil {
			return fmt.Errorf("ensure bucket %s: %w", c.Bucket, err)
		}
	}
	return ensureConsumers(ctx, js, consumers())
}

// EnsureWorker makes the consumers of one worker, under the same rules. Ensure must have run.
func EnsureWorker(ctx context.Context, js jetstream.JetStream, worker string, o Options) error {
	if !subject.ValidToken(worker) {
		return fault.Newf(fault.InvalidArgument, fault.ReasonValidation,
			"%q is not a worker name: 1 to 64 of A-Z a-z 0-9 _ -", worker)
	}
	if o.Given {
		return given(DiffWorker(ctx, js, worker, o))
	}
	return ensureConsumers(ctx, js, workerConsumers(worker))
}

// given refuses what is missing. Other differences are for whoever makes the topology: during an upgrade services of two versions run.
func given(differences []Difference, err error) error {
	if err != nil {
		return err
	}
	var names []string
	for _, d := range differences {
		if d.Field == fieldExists {
			names = append(names, d.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fault.Newf(fault.Unavailable, fault.ReasonLogUnavailable,
		"missing on the NATS server: %s; run `sandtrail topology ensure`", strings.Join(names, ", "))
}

func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	have, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		fresh := want
		fresh.Metadata = maps.Clone(want.Metadata)
		fresh.Metadata[MetaIncarnation] = ids.New()
		if _, err = js.CreateStream(ctx, fresh); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		// Somebody else was faster; theirs is the incarnation that counts.
		have, err = js.Stream(ctx, want.Name)
	}
	if err != nil {
		return err
	}
	info := have.CachedInfo()
	want.Replicas = max(want.Replicas, info.Config.Replicas)
	if len(compare(want.Name, want, info.Config)) == 0 && info.Config.Metadata[MetaIncarnation] != "" {
		return nil
	}
	if err := refuseLoss(want, info); err != nil {
		return err
	}
	want.Metadata = merged(info.Config.Metadata, want.Metadata)
	if want.Metadata[MetaIncarnation] == "" {
		want.Metadata[MetaIncarnation] = ids.New()
	}
	_, err = js.UpdateStream(ctx, want)
	return err
}

// refuseLoss refuses an update after which the server would remove stored messages to fit the new limits.
func refuseLoss(want jetstream.StreamConfig, info *jetstream.StreamInfo) error {
	refuse := func(field string) error {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonValidation,
			"lowering %s of stream %s would remove stored messages; remove them by hand first or keep the setting", field, want.Name)
	}
	have, state := info.Config, info.State
	if want.MaxBytes > 0 && uint64(want.MaxBytes) < state.Bytes {
		return refuse("max_bytes")
	}
	if want.MaxAge > 0 && state.Msgs > 0 && (have.MaxAge == 0 || want.MaxAge < have.MaxAge) &&
		time.Since(state.FirstTime) > want.MaxAge {
		return refuse("max_age")
	}
	if want.MaxMsgs > 0 && uint64(want.MaxMsgs) < state.Msgs {
		return refuse("max_msgs")
	}
	if want.MaxMsgsPerSubject > 0 && want.MaxMsgsPerSubject != have.MaxMsgsPerSubject && state.Msgs > 0 {
		return refuse("max_msgs_per_subject")
	}
	return nil
}

func ensureBucket(ctx context.Context, js jetstream.JetStream, want jetstream.KeyValueConfig) error {
	have, err := js.KeyValue(ctx, want.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if _, err = js.CreateKeyValue(ctx, want); !errors.Is(err, jetstream.ErrBucketExists) {
			return err
		}
		have, err = js.KeyValue(ctx, want.Bucket)
	}
	if err != nil {
		return err
	}
	status, err := have.Status(ctx)
	if err != nil {
		return err
	}
	want.Replicas = max(want.Replicas, status.Config().Replicas)
	if len(compare(want.Bucket, want, status.Config())) == 0 {
		return nil
	}
	if err := refuseEntries(want, status); err != nil {
		return err
	}
	want.Metadata = merged(status.Metadata(), want.Metadata)
	_, err = js.UpdateKeyValue(ctx, want)
	return err
}

// refuseEntries refuses an update that would cost a bucket entries.
func refuseEntries(want jetstream.KeyValueConfig, status jetstream.KeyValueStatus) error {
	if want.MaxBytes > 0 && uint64(want.MaxBytes) < status.Bytes() {
		return fault.Newf(fault.FailedPrecondition, fault.ReasonValidation,
			"lowering max_bytes of bucket %s would remove stored entries", want.Bucket)
	}
	return nil
}

func ensureConsumers(ctx context.Context, js jetstream.JetStream, all []consumer) error {
	for _, c := range all {
		if err := ensureConsumer(ctx, js, c); err != nil {
			return fmt.Errorf("ensure consumer %s of %s: %w", c.config.Durable, c.stream, err)
		}
	}
	return nil
}

func ensureConsumer(ctx context.Context, js jetstream.JetStream, c consumer) error {
	have, err := js.Consumer(ctx, c.stream, c.config.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if _, err = js.CreateConsumer(ctx, c.stream, c.config); !errors.Is(err, jetstream.ErrConsumerExists) {
			return err
		}
		have, err = js.Consumer(ctx, c.stream, c.config.Durable)
	}
	if err != nil {
		return err
	}
	config := have.CachedInfo().Config
	if len(compare(c.config.Durable, c.config, config)) == 0 {
		return nil
	}
	c.config.Metadata = merged(config.Metadata, c.config.Metadata)
	_, err = js.UpdateConsumer(ctx, c.stream, c.config)
	return err
}

// merged is have with the entries of want; those of the server and of the operator stay.
func merged(have, want map[string]string) map[string]string {
	m := maps.Clone(have)
	if m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, want)
	return m
}
