package sandbox_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/sandbox"
)

// FuzzEvolve: any event behind any state is refused and changes nothing, or gives a state whose view can be stored. Each byte of the
// story is one event of the corpus; the last one has a body of its own.
func FuzzEvolve(f *testing.F) {
	types := eventTypes()
	bodies := make([][]byte, len(types))
	for i, mt := range types {
		var err error
		bodies[i], err = os.ReadFile(corpusPath(string(mt.Descriptor().Name()), ".binpb"))
		require.NoError(f, err)
		f.Add([]byte{byte(i)}, uint8(i), bodies[i], int64(0))
		f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, uint8(i), bodies[i], int64(1)<<40)
	}
	f.Fuzz(func(t *testing.T, story []byte, last uint8, body []byte, at int64) {
		if len(story) > 64 {
			return
		}
		var (
			box sandbox.Sandbox
			run sandbox.Exec
			dir sandbox.Workspace
		)
		step := func(seq uint64, which int, data []byte) {
			m := types[which%len(types)].New().Interface()
			if proto.Unmarshal(data, m) != nil {
				return
			}
			e := envelope.Recorded{Meta: envelope.Meta{ID: "id", Type: "t", Tenant: "acme", Time: time.Unix(0, at)}, Seq: seq, Data: data, Body: m}
			if next, err := box.Evolve(e); err == nil {
				box = next
				_, err := proto.Marshal(box.View())
				require.NoError(t, err)
				require.GreaterOrEqual(t, box.UptimeAt(time.Unix(0, at)), time.Duration(0))
			} else {
				require.Equal(t, box, next)
			}
			if next, err := run.Evolve(e); err == nil {
				run = next
				_, err := proto.Marshal(run.View())
				require.NoError(t, err)
				require.Equal(t, seq, run.LastSeq)
			} else {
				require.Equal(t, run, next)
			}
			if next, err := dir.Evolve(e); err == nil {
				dir = next
			} else {
				require.Equal(t, dir, next)
			}
		}
		for i, which := range story {
			step(uint64(i+1), int(which), bodies[int(which)%len(types)])
		}
		step(uint64(len(story)+1), int(last), body)
	})
}
