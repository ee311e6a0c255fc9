// Package quota counts what tenants use against what they may: each tenant's sandboxes in one entry of a bucket, its execs in another, both
// changed by compare and set, so that they are exact with any number of processes. What an entry holds can be made again from the log.
package quota

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

const (
	// execsEnd is what the keys of execs end with behind the tenant, whose name holds no dot.
	execsEnd = ".execs"
	// wait is when a tenant at a limit may try again where only it can make room.
	wait = 10 * time.Second
	// shown is how many holders of places a refusal names.
	shown = 5
)

// SandboxesKey is the entry of a tenant's sandboxes, ExecsKey that of its execs.
func SandboxesKey(id string) string { return id }

// ExecsKey is the entry of a tenant's execs.
func ExecsKey(id string) string { return id + execsEnd }

// Exceeded is the refusal of what would go over a limit. used is what is in use without it.
func Exceeded(id string, q tenant.Quota, limit, used, more uint64, after time.Duration, holders ...string) *fault.Error {
	text := fmt.Sprintf("tenant %s is at its quota %s: the limit is %d, %d are in use", id, q, limit, used)
	if more != 1 {
		text += fmt.Sprintf(" and this takes %d", more)
	}
	if len(holders) > 0 {
		text += "; destroy one of them first: " + list(holders, shown)
	}
	return fault.New(fault.ResourceExhausted, fault.ReasonQuota, text).WithQuota(string(q)).WithRetry(after)
}

func list(s []string, most int) string {
	if len(s) <= most {
		return strings.Join(s, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(s[:most], ", "), len(s)-most)
}

// shownErr makes an error of the bucket one that may be tried again; faults stay.
func shownErr(err error) error {
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f):
		return err
	case errors.Is(err, bucket.ErrContended):
		return fault.New(fault.Unavailable, fault.ReasonConflict, "too many calls of the tenant at the same time").WithRetry(time.Second).Because(err)
	default:
		return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "quotas cannot be counted now").WithRetry(time.Second).Because(err)
	}
}
