package spool

import (
	"cmp"
	"slices"
)

// maxRanges bounds a list of ranges. A disk that is full now and then must not make one that grows.
const maxRanges = 64

// span is the bytes from from up to and without to.
type span struct{ from, to uint64 }

// ranges are disjoint and rising.
type ranges []span

// add puts a range in its place and joins it with those that it touches. Over maxRanges the two with the least between them
// are joined, and what lies between them counts as in it.
func (r *ranges) add(from, to uint64) {
	l := *r
	i, _ := slices.BinarySearchFunc(l, from, func(s span, from uint64) int { return cmp.Compare(s.to, from) })
	j := i
	for ; j < len(l) && l[j].from <= to; j++ {
		from, to = min(from, l[j].from), max(to, l[j].to)
	}
	l = slices.Replace(l, i, j, span{from, to})
	if len(l) > maxRanges {
		at := 0
		for k := range len(l) - 1 {
			if l[k+1].from-l[k].to < l[at+1].from-l[at].to {
				at = k
			}
		}
		l = slices.Replace(l, at, at+2, span{l[at].from, l[at+1].to})
	}
	*r = l
}

// at is the range that holds o.
func (r ranges) at(o uint64) (span, bool) {
	for _, s := range r {
		if s.from <= o && o < s.to {
			return s, true
		}
	}
	return span{}, false
}

// after is the first range that begins behind o.
func (r ranges) after(o uint64) (span, bool) {
	for _, s := range r {
		if s.from > o {
			return s, true
		}
	}
	return span{}, false
}
