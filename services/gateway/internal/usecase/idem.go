package usecase

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// claim is an idempotency key bound to a request; without a key it is empty and binds nothing.
type claim struct {
	parts []string
	// key is the SHA-256 of the key.
	key []byte
	// name of its entry in bucket idem; digest of the request and its caller.
	name, digest string
	// repeated: somebody came with the same key and request before.
	repeated bool
}

// id of what the request makes: the same for its repeats, random without a key. It depends on the request too, so that a key that
// was forgotten (24 h) and is used for another request makes another thing.
func (c claim) id() string {
	if c.name == "" {
		return ids.New()
	}
	return ids.Derive(append(c.parts, c.digest)...)
}

// unclaimed is a key of a tenant before it is known which request it is bound to.
func unclaimed(tenant, method, key string) claim {
	hashed := sha256.Sum256([]byte(key))
	return claim{
		parts: []string{"idempotent", tenant, method, key}, key: hashed[:], name: tenant + "." + method + "." + hex.EncodeToString(hashed[:]),
	}
}

// claimed finds what a key was bound to; false where it was not, or is forgotten.
func (u *UseCases) claimed(ctx context.Context, tenant, method, key string) (claim, bool, error) {
	c := unclaimed(tenant, method, key)
	e, _, err := u.read(ctx, c)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return c, false, nil
	}
	c.digest, c.repeated = e.Digest, true
	return c, err == nil, err
}

// digests are the SHA-256 of the key and of the request with its caller; nil without a key.
func (c claim) digests() (key, request []byte) {
	if c.name == "" {
		return nil, nil
	}
	request, _ = hex.DecodeString(c.digest) // it was encoded here
	return c.key, request
}

// entry is a key in bucket idem.
type entry struct {
	Digest string `json:"digest"`
	// Until is when whoever is at it has given up for sure, in Unix milliseconds; 0 while nobody is.
	Until int64 `json:"until,omitempty"`
	// Result is how many bytes it wrote, set once it is done, beside the rest of Written. Only what can be done once at a time has
	// Until and Result, see once.
	Result *int64 `json:"result,omitempty"`
	Size   int64  `json:"size,omitempty"`
	SHA256 []byte `json:"sha256,omitempty"`
	// Answer is what the first caller was told, where a later look would tell another thing.
	Answer string `json:"answer,omitempty"`
}

// claim binds an idempotency key to the request it came with, for the lifetime of bucket idem (24 h). The same key with the
// same request passes; with another request, or from another caller of the tenant, it is a conflict. Ids are derived from the
// claim, so whoever passes reaches the same aggregate and nothing happens twice. An empty key always passes. A new one counts in the tenant's
// quota of them, because all tenants share the bucket.
func (u *UseCases) claim(ctx context.Context, tenant, method, key, actor string, request proto.Message) (claim, error) {
	if key == "" {
		return claim{}, nil
	}
	if err := checkKey(key); err != nil {
		return claim{}, err
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return claim{}, fault.From(err)
	}
	kv, err := u.keys(ctx)
	if err != nil {
		return claim{}, err
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", method, actor, body))
	c := unclaimed(tenant, method, key)
	c.digest = hex.EncodeToString(digest[:])
	refused := again(ctx, func(ctx context.Context) error { return u.allowed.Take(ctx, tenant) })
	if refused != nil {
		// Whoever has used the key before gets its answer all the same.
		if c, err = u.repeat(ctx, c); errors.Is(err, jetstream.ErrKeyNotFound) {
			err = refused
		}
		return c, err
	}
	// One whose answer was lost is found the next time, as if somebody had come with it before, which is right: nothing says whether what
	// is behind it has been begun.
	err = again(ctx, func(ctx context.Context) error {
		_, err := kv.Create(ctx, c.name, encode(entry{Digest: c.digest}))
		return err
	})
	if err == nil {
		return c, nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return c, unreachable(err)
	}
	u.allowed.Give(tenant)
	return u.repeat(ctx, c)
}

// repeat is a claim that was made before: a conflict where it was made for another request.
func (u *UseCases) repeat(ctx context.Context, c claim) (claim, error) {
	c.repeated = true
	e, _, err := u.read(ctx, c)
	if err == nil && e.Digest != c.digest {
		return c, fault.New(fault.Conflict, fault.ReasonIdempotency, "this idempotency key was used with another request").
			WithFields(map[string]string{"idempotency-key": "use a new key for a new request, or repeat the first one exactly"})
	}
	return c, err
}

// onceWait bounds what once does; the deadline of a call comes before it.
const onceWait = 3 * time.Minute

// once lets one caller at a time do what would be done twice otherwise, and gives its result to all who come with the same key
// and request, during it or later. One that fails, or is killed, makes room for the next (at once, or after onceWait). Without
// a key it just does it.
func (u *UseCases) once(ctx context.Context, c claim, do func(context.Context) (Written, error)) (Written, error) {
	if c.name == "" {
		return do(ctx)
	}
	kv, err := u.keys(ctx)
	if err != nil {
		return Written{}, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var mine uint64
	for mine == 0 {
		e, revision, err := u.read(ctx, c)
		switch {
		case err != nil:
			return Written{}, err
		case e.Result != nil:
			return Written{Bytes: *e.Result, Size: e.Size, SHA256: e.SHA256}, nil
		case time.Now().UnixMilli() >= e.Until:
			e.Until = time.Now().Add(onceWait).UnixMilli()
			if mine, err = kv.Update(ctx, c.name, encode(e), revision); err == nil {
				continue
			}
			mine = 0 // somebody was faster, or the bucket is out of reach, which the next read says
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Written{}, fault.New(fault.Unavailable, fault.ReasonConflict, "the first call with this idempotency key is still at work; repeat it").
				WithRetry(time.Second).Because(ctx.Err())
		}
	}
	bounded, cancel := context.WithTimeout(ctx, onceWait-time.Second)
	defer cancel()
	written, err := do(bounded)
	done := entry{Digest: c.digest}
	if err == nil {
		done.Result, done.Size, done.SHA256 = &written.Bytes, written.Size, written.SHA256
	}
	// What came of it counts also when the caller has gone away.
	record, cancelRecord := context.WithTimeout(context.WithoutCancel(ctx), outcomeWait)
	defer cancelRecord()
	if _, rerr := kv.Update(record, c.name, encode(done), mine); rerr != nil {
		u.logger.WarnContext(ctx, "the result of an idempotent call is not recorded", "error", rerr)
	}
	return written, err
}

// settle makes value the answer of a claim, unless it has one already: that is given then. Without a key value stands.
func (u *UseCases) settle(ctx context.Context, c claim, value string) (string, error) {
	if c.name == "" {
		return value, nil
	}
	kv, err := u.keys(ctx)
	if err != nil {
		return value, err
	}
	answer := value
	err = again(ctx, func(ctx context.Context) error {
		for {
			e, revision, err := u.read(ctx, c)
			switch {
			case errors.Is(err, jetstream.ErrKeyNotFound):
				return nil // forgotten meanwhile, and so is its answer
			case err != nil:
				return err
			case e.Answer != "":
				answer = e.Answer
				return nil
			}
			e.Answer = value
			if _, err = kv.Update(ctx, c.name, encode(e), revision); !errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
				return err
			}
			// Somebody was faster, which the next look shows.
		}
	})
	if err != nil {
		return value, unreachable(err)
	}
	return answer, nil
}

func encode(e entry) []byte {
	b, _ := json.Marshal(e) // strings and numbers always marshal
	return b
}

// read gives the entry of a key and its revision, by the leader of the bucket: a replica may not show yet that somebody has the key.
func (u *UseCases) read(ctx context.Context, c claim) (entry, uint64, error) {
	var e entry
	m, err := directget.LeaderLast(ctx, u.js, subject.BucketStream(topology.BucketIdem), subject.BucketKey(topology.BucketIdem, c.name))
	if err == nil && m == nil {
		err = jetstream.ErrKeyNotFound
	}
	if err == nil {
		err = json.Unmarshal(m.Data, &e)
	}
	if err != nil {
		return e, 0, unreachable(err)
	}
	return e, m.Seq, nil
}

// keys is the bucket of idempotency keys, opened once.
func (u *UseCases) keys(ctx context.Context) (jetstream.KeyValue, error) {
	return u.opened(ctx, &u.idem, topology.BucketIdem)
}

func (u *UseCases) opened(ctx context.Context, at *atomic.Pointer[jetstream.KeyValue], name string) (jetstream.KeyValue, error) {
	if kv := at.Load(); kv != nil {
		return *kv, nil
	}
	var kv jetstream.KeyValue
	err := again(ctx, func(ctx context.Context) (err error) {
		kv, err = u.js.KeyValue(ctx, name)
		return err
	})
	if err != nil {
		return nil, unreachable(err)
	}
	at.Store(&kv)
	return kv, nil
}

// checkKey: 1 to 200 printable ASCII characters without spaces.
func checkKey(key string) error {
	bad := key == "" || len(key) > 200
	for _, c := range []byte(key) {
		bad = bad || c <= ' ' || c > '~'
	}
	if bad {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the idempotency key is not valid").
			WithFields(map[string]string{"idempotency-key": "must be 1 to 200 printable ASCII characters without spaces"})
	}
	return nil
}
