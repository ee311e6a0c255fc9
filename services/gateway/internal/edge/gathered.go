package edge

import (
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// MaxOutput is how many bytes of each stream an answer holds. All of it stands in the log.
const MaxOutput = 1 << 20

// Gathered is the output of an exec as far as an answer holds it: of each stream the beginning, up to MaxOutput, to a gap, or as far as the
// tenant's share of memory goes.
type Gathered struct {
	// Stdout, Stderr and, where it is asked for, both in the order in which they came.
	Stdout, Stderr, Both []byte

	together bool
	memory   stored.Share
	held     int
	// cut: what comes behind it is left out, of stdout and of stderr.
	cut [2]bool
}

// NewGathered makes an empty one. together asks for Both, which holds every byte a second time.
func NewGathered(memory stored.Share, together bool) *Gathered {
	return &Gathered{memory: memory, together: together}
}

// Add takes the next chunk, which may be none.
func (g *Gathered) Add(c *transcript.Chunk) {
	if c == nil {
		return
	}
	data, cut := &g.Stdout, &g.cut[0]
	if c.Stream == transcript.Stderr {
		data, cut = &g.Stderr, &g.cut[1]
	}
	if *cut {
		return // what comes behind a gap is not what a reader would take it for
	}
	take := min(len(c.Data), MaxOutput-len(*data))
	held := take
	if g.together {
		held *= 2
	}
	if c.GapTo > 0 || !g.memory.Take(held) {
		*cut = true
		return
	}
	g.held += held
	*data = append(*data, c.Data[:take]...)
	if g.together {
		g.Both = append(g.Both, c.Data[:take]...)
	}
	*cut = take < len(c.Data)
}

// Truncated reports whether it is less than what the exec, as it is recorded, wrote.
func (g *Gathered) Truncated(x sandbox.Exec) bool {
	return g.cut[0] || g.cut[1] || uint64(len(g.Stdout)) < x.Completed.GetStdout().GetBytes() || uint64(len(g.Stderr)) < x.Completed.GetStderr().GetBytes()
}

// Release gives the memory back, once it has been answered.
func (g *Gathered) Release() {
	g.memory.Give(g.held)
	g.held = 0
}
