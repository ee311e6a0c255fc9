package agent

import (
	"google.golang.org/protobuf/proto"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// remembered are the ends of execs of which nothing else is kept, so that none is started twice. They lie in memory, encoded: every
// file that the agent can write, a program can write too.
type remembered struct {
	ends  map[string][]byte
	order []string
}

func (r *remembered) put(id string, end *toolboxv1.End) error {
	b, err := proto.Marshal(end)
	if _, known := r.ends[id]; !known {
		r.order = append(r.order, id)
	}
	r.ends[id] = b
	if len(r.order) > maxRemembered {
		delete(r.ends, r.order[0])
		r.order = r.order[1:]
	}
	return err
}

func (r *remembered) has(id string) bool {
	_, ok := r.ends[id]
	return ok
}

func (r *remembered) get(id string) (*toolboxv1.End, error) {
	b, ok := r.ends[id]
	if !ok {
		return nil, wire.NewError("not_found", "exec_not_found", "no such command in this sandbox")
	}
	end := &toolboxv1.End{}
	return end, proto.Unmarshal(b, end)
}
