package usecase

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// claim binds an idempotency key to the request it came with, for the lifetime of bucket idem (24 h). The same key with the
// same request passes; with another request it is a conflict. Ids are derived from the key, so whoever passes reaches the same
// aggregate and nothing happens twice. An empty key always passes.
func (u *UseCases) claim(ctx context.Context, tenant, method, key, actor string, request proto.Message) error {
	if key == "" {
		return nil
	}
	if err := checkKey(key); err != nil {
		return err
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return fault.From(err)
	}
	s := sha256.New()
	for _, part := range [][]byte{[]byte(method), []byte(actor), body} {
		s.Write(part)
		s.Write([]byte{0})
	}
	digest := hex.EncodeToString(s.Sum(nil))
	kv, err := u.js.KeyValue(ctx, topology.BucketIdem)
	if err != nil {
		return unreachable(err)
	}
	hashed := sha256.Sum256([]byte(key))
	name := tenant + "." + method + "." + hex.EncodeToString(hashed[:])
	_, err = kv.Create(ctx, name, []byte(digest))
	if err == nil {
		return nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return unreachable(err)
	}
	entry, err := kv.Get(ctx, name)
	if err != nil {
		return unreachable(err)
	}
	if string(entry.Value()) != digest {
		return fault.New(fault.Conflict, fault.ReasonIdempotency, "this idempotency key was used with another request").
			WithFields(map[string]string{"idempotency-key": "use a new key for a new request, or repeat the first one exactly"})
	}
	return nil
}

// checkKey: 1 to 200 printable ASCII characters without spaces.
func checkKey(key string) error {
	bad := len(key) > 200
	for _, c := range []byte(key) {
		bad = bad || c <= ' ' || c > '~'
	}
	if bad {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the idempotency key is not valid").
			WithFields(map[string]string{"idempotency-key": "must be 1 to 200 printable ASCII characters without spaces"})
	}
	return nil
}
