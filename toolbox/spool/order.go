package spool

// maxRuns bounds what is remembered of the order of the two streams.
const maxRuns = 2048

// run is output of one stream without output of the other in between.
type run struct {
	from, to uint64
	stream   uint32
}

// order is the runs in the order of writing. A program that alternates between its streams in small writes makes a run of each;
// once there are too many, the older ones are joined in groups, in which the order of the two streams is then unknown.
type order struct {
	runs []run
	adds uint64
	// version changes when runs other than the last do.
	version uint64
}

// add extends the last run, but never the first write: a reader gets that as a piece of its own.
func (o *order) add(stream uint32, from, to uint64) {
	o.adds++
	if n := len(o.runs); n > 0 && o.adds != 2 {
		if last := &o.runs[n-1]; last.stream == stream && last.to == from {
			last.to = to
			return
		}
	}
	o.runs = append(o.runs, run{from, to, stream})
}

func (o *order) full() bool { return len(o.runs) >= maxRuns }

// compact drops the runs of which nothing can be read any more and joins the older half of the rest, eight to at most two.
// readable is the first offset of a stream that can be read from a given one on.
func (o *order) compact(readable func(stream uint32, from uint64) uint64) {
	const group = 8
	o.version++
	kept := o.runs[:0]
	for _, r := range o.runs {
		if readable(r.stream, r.from) < r.to {
			kept = append(kept, r)
		}
	}
	o.runs = kept
	if len(kept) < maxRuns/2 {
		return
	}
	old := len(kept) / 2 / group * group
	joined := kept[:0]
	for i := 0; i < old; i += group {
		// The group is copied, since joined grows into it.
		var g [group]run
		copy(g[:], kept[i:i+group])
		joined = append(joined, join(g[:])...)
	}
	joined = append(joined, kept[old:]...)
	o.runs = joined
}

// join makes one run of each stream that occurs in g, first come first.
func join(g []run) []run {
	out := make([]run, 0, 2)
	for _, r := range g {
		known := false
		for i := range out {
			if out[i].stream == r.stream {
				out[i].to = r.to
				known = true
			}
		}
		if !known {
			out = append(out, r)
		}
	}
	return out
}
