package keeper

import "time"

// split gives every open account its part of the CPU time that the sandbox used since the last time; the parts are never more
// than that together, and all of it where any account is open. times is what the sentry says of their processes, by tag, or
// nil; ending is the account that is about to close, whose processes the sentry no longer has.
//
// A process that ended in between is no longer in the sentry's word, unless its parent waited for it: what the others did not
// use goes to the execs that lost some.
func split(total time.Duration, open map[*account]struct{}, times map[uint32]time.Duration, ending *account) {
	if total <= 0 || len(open) == 0 {
		return
	}
	if times == nil || len(open) == 1 {
		evenly(total, open, ending)
		return
	}
	known := make(map[*account]time.Duration, len(open))
	var sum time.Duration
	var lost []*account
	for a := range open {
		now, there := times[a.tag]
		if a == ending || a.seen > 0 && !there || now < a.seen {
			lost = append(lost, a)
		}
		known[a] = max(now-a.seen, 0)
		sum += known[a]
		a.seen = now
		a.idle = there && known[a] == 0
	}
	rest := time.Duration(0)
	switch {
	case len(lost) > 0:
		rest = max(total-sum, 0)
	case sum == 0:
		evenly(total, open, nil)
		return
	}
	for a, k := range known {
		// What is known is in ticks, and without what the sentry does for it: only its proportions count.
		if rest == 0 {
			k = time.Duration(float64(total) * float64(k) / float64(sum))
		}
		a.used.cpu += k
	}
	for _, a := range lost {
		a.used.cpu += rest / time.Duration(len(lost))
	}
}

// evenly splits among those that are not known to be idle.
func evenly(total time.Duration, open map[*account]struct{}, ending *account) {
	var busy []*account
	for a := range open {
		if !a.idle || a == ending {
			busy = append(busy, a)
		}
	}
	if len(busy) == 0 {
		for a := range open {
			busy = append(busy, a)
		}
	}
	for _, a := range busy {
		a.used.cpu += total / time.Duration(len(busy))
	}
}
