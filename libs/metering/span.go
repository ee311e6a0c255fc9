package metering

// Unseen bounds how much of a sandbox's uptime counts that ended by itself, in milliseconds: at what moment it died nobody saw, and a
// host that was away for days must not bill them. uptime is that of the reading before, which is at most a twentieth of it or an hour
// old where the host lived; see lifecycle's samples.
func Unseen(uptime uint64) uint64 {
	const minute = 60_000
	return max(5*minute, min(uptime/10, 120*minute))
}

// life adds the readings of one sandbox up.
type life struct {
	// anchor is when the present run began, up is how much of it has been counted; ok: there is a run.
	anchor int64
	up     uint64
	ok     bool
	// at are the highest cumulative figures so far: counters never go back, whatever a reading says. memory is in MiB x ms.
	at     Reading
	memory uint64
}

// Spans are those of a sandbox. readings are all of it, in the order of their sequences; those that are not of the sandbox are
// passed over. A span with nothing in it is left out.
func Spans(readings []Reading, o Owner) []Span {
	var all []Span
	var l life
	for _, r := range readings {
		switch r.Kind {
		case Ready:
			l.anchor, l.up, l.ok = r.At, 0, true
		case Sampled, Stopped, Failed, Destroyed:
			if s := l.span(r, o); len(s.Parts) > 0 {
				all = append(all, s)
			}
		default:
		}
	}
	return all
}

// span is what was used between the reading before and r.
func (l *life) span(r Reading, o Owner) Span {
	was := l.at
	raw := max(r.Millis, was.Millis) - was.Millis
	counted := min(raw, Longest)
	if r.Kind == Failed {
		counted = min(counted, Unseen(was.Millis))
	}
	s := Span{From: r.At, To: r.At, Seq: r.Seq}
	if l.ok {
		s.From = l.anchor + int64(l.up) //nolint:gosec // centuries
		s.To = s.From + int64(counted)  //nolint:gosec // centuries
		l.up += counted
	}
	d := length(s.From, s.To)
	add := func(m Meter, quantity uint64) {
		if quantity > 0 {
			s.Parts = append(s.Parts, share(m, quantity, d))
		}
	}
	add(SandboxUptime, counted)
	add(SandboxCPUAllocated, scale(o.CPUMillis, counted, 1))
	add(SandboxMemoryAllocated, scale(o.MemoryBytes, counted, mib))
	l.at.Millis += raw
	add(SandboxCPUUsed, scale(grow(&l.at.CPUMillis, r.CPUMillis), 1000, 1))
	memory := grow(&l.memory, scale(r.MemoryAvg, l.at.Millis, mib))
	if counted < raw {
		memory = scale(memory, counted, raw)
	}
	add(SandboxMemoryUsed, memory)
	add(SandboxDiskRead, grow(&l.at.DiskRead, r.DiskRead))
	add(SandboxDiskWrite, grow(&l.at.DiskWrite, r.DiskWrite))
	add(SandboxNetworkEgress, grow(&l.at.Egress, r.Egress))
	add(SandboxNetworkIngress, grow(&l.at.Ingress, r.Ingress))
	return s
}

// grow raises a counter to now, never lowers it, and says by how much.
func grow(counter *uint64, now uint64) uint64 {
	d := max(now, *counter) - *counter
	*counter += d
	return d
}

// Storage is the span of a sandbox's workspace: from the first ready to its removal, or to until (Unix milliseconds) where none is
// known. false: there is none. Readings are as those of Spans.
func Storage(readings []Reading, o Owner, until int64) (Span, bool) {
	s := Span{To: until}
	found := false
	for _, r := range readings {
		switch {
		case r.Kind == Ready && !found:
			s.From, found = r.At, true
			s.Seq = max(s.Seq, r.Seq)
		case r.Kind == Removed:
			s.To = min(s.To, r.At)
			s.Seq = max(s.Seq, r.Seq)
		default:
		}
	}
	s.Parts = []Part{{Meter: WorkspaceStorage, N: o.WorkspaceBytes, M: mib}}
	return s, found && o.WorkspaceBytes > 0 && s.To > s.From
}

// Exec is the span of an exec that has ended.
func Exec(r Reading) Span {
	s := Span{From: r.At - int64(r.Millis), To: r.At, Seq: r.Seq} //nolint:gosec // centuries
	for _, p := range []Part{
		{Meter: Execs, N: 1},
		{Meter: ExecWall, N: r.Millis},
		{Meter: ExecCPU, N: scale(r.CPUMillis, 1000, 1)},
		{Meter: ExecMemory, N: scale(r.MemoryAvg, r.Millis, mib)},
		{Meter: ExecDiskRead, N: r.DiskRead},
		{Meter: ExecDiskWrite, N: r.DiskWrite},
		{Meter: ExecNetworkEgress, N: r.Egress},
		{Meter: ExecNetworkIngress, N: r.Ingress},
		{Meter: OutputKept, N: r.OutputKept},
	} {
		if p.N > 0 {
			s.Parts = append(s.Parts, share(p.Meter, p.N, r.Millis))
		}
	}
	return s
}
