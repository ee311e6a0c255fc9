package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Used is what a tenant uses of each quota that is a sum, as a replica has it: execs are a second old at most.
func Used(ctx context.Context, js jetstream.JetStream, id string) (tenant.Quotas, error) {
	kv, err := js.KeyValue(ctx, topology.BucketQuota)
	if err != nil {
		return nil, fmt.Errorf("open the bucket of quotas: %w", err)
	}
	var ledger Ledger
	var parts Parts
	for key, value := range map[string]any{SandboxesKey(id): &ledger, ExecsKey(id): &parts} {
		e, err := kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of the quotas: %w", key, err)
		}
		if err := json.Unmarshal(e.Value(), value); err != nil {
			return nil, fmt.Errorf("read %s of the quotas: %w", key, err)
		}
	}
	used := ledger.Used(time.Now())
	used[tenant.Execs] = parts.Used(time.Now(), "")
	if used[tenant.Keys], err = usedKeys(ctx, js, id, time.Now()); err != nil {
		return nil, err
	}
	return used, nil
}
