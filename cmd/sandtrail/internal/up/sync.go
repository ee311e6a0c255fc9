package up

import (
	"fmt"
	"time"
)

// minSync keeps flushes from taking all of the disk's time; who wants less than this to be lost wants nothing to be lost.
const minSync = 10 * time.Millisecond

// Sync is when the log is flushed to the disk: always, before each acknowledgement, or at an interval.
type Sync struct {
	// Every is the interval, 0 for always.
	Every time.Duration
}

// UnmarshalText takes "always" or a duration of at least 10 ms.
func (s *Sync) UnmarshalText(text []byte) error {
	if string(text) == "always" {
		*s = Sync{}
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d < minSync {
		return fmt.Errorf("%q is neither always nor a duration of at least %s", text, minSync)
	}
	*s = Sync{Every: d}
	return nil
}
