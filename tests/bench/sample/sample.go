// Package sample is many values of one measurement.
package sample

import (
	"math"
	"slices"
	"time"
)

// Values are in the order in which they were taken.
type Values []float64

// Add appends a value.
func (v *Values) Add(x float64) { *v = append(*v, x) }

// Took appends the time since start, in milliseconds.
func (v *Values) Took(start time.Time) { v.Add(float64(time.Since(start).Microseconds()) / 1000) }

// Median is NaN of nothing.
func (v Values) Median() float64 { return v.Quantile(0.5) }

// Quantile is the value that the share q of all is not above, between two where it falls between them; NaN of nothing.
func (v Values) Quantile(q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	at := q * float64(len(s)-1)
	low := int(at)
	if low == len(s)-1 {
		return s[low]
	}
	return s[low] + (at-float64(low))*(s[low+1]-s[low])
}

// Max is NaN of nothing.
func (v Values) Max() float64 { return v.Quantile(1) }

// Slices turns the progress of a long transfer into rates: one value for each full slice, of a slice's size by the time it
// took. Mark is called with the total so far. Not for concurrent use.
type Slices struct {
	size, next, begin float64
	at                time.Time
	rates             Values
}

// NewSlices starts the clock. size is in the unit of the totals that Mark gets.
func NewSlices(size float64) *Slices { return &Slices{size: size, next: size, at: time.Now()} }

// Mark takes the total so far. A step over several slices counts as one longer slice.
func (s *Slices) Mark(total float64) {
	if total < s.next {
		return
	}
	now := time.Now()
	s.rates.Add((total - s.begin) / now.Sub(s.at).Seconds())
	s.begin, s.at, s.next = total, now, total+s.size
}

// Rates are per second.
func (s *Slices) Rates() Values { return s.rates }
