package sandboxapi

import (
	"bytes"
	"encoding/json"

	"github.com/sandtrail/sandtrail/libs/egress"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// egressRules are where the programs of a sandbox may connect to.
type egressRules struct {
	Allow []egressRule `json:"allow"`
}

// egressRule has either host or cidr; without ports they are 80 and 443.
type egressRule struct {
	Host  string   `json:"host,omitempty"`
	CIDR  string   `json:"cidr,omitempty"`
	Ports []uint32 `json:"ports,omitempty"`
}

// read gives the rules as they are recorded, and adds to bad what is wrong with them.
func (e *egressRules) read(bad map[string]string) *eventsv1.Egress {
	out := &eventsv1.Egress{}
	for _, r := range e.Allow {
		out.Allow = append(out.Allow, &eventsv1.EgressRule{Host: r.Host, Cidr: r.CIDR, Ports: r.Ports})
	}
	_, wrong := egress.Read(out)
	for path, what := range wrong {
		bad["egress."+path] = what
	}
	return out
}

// wantedEgress reads the rules of a change, which are all that there are then.
func wantedEgress(v json.RawMessage, bad map[string]string) *eventsv1.Egress {
	var e egressRules
	d := json.NewDecoder(bytes.NewReader(v))
	d.DisallowUnknownFields()
	if d.Decode(&e) != nil {
		bad["egress"] = `must be such as {"allow": [{"host": "*.example.com", "ports": [443]}]}`
		return nil
	}
	return e.read(bad)
}

func shownEgress(e *eventsv1.Egress) *egressRules {
	if e == nil {
		return nil
	}
	out := &egressRules{Allow: []egressRule{}}
	for _, r := range e.GetAllow() {
		out.Allow = append(out.Allow, egressRule{Host: r.GetHost(), CIDR: r.GetCidr(), Ports: r.GetPorts()})
	}
	return out
}
