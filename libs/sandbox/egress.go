package sandbox

import (
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/egress"
	"github.com/sandtrail/sandtrail/libs/fault"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// MaxEgressSets bounds how often the egress of a sandbox changes: whoever decides about it reads them all.
const MaxEgressSets = 1000

// SetEgress says where its programs may connect to from now on. What it is already decides nothing. Refused once its end is decided or it failed,
// with fault.InvalidArgument where egress.Read finds something wrong, and with fault.ResourceExhausted behind MaxEgressSets.
type SetEgress struct{ Egress *eventsv1.Egress }

func (c SetEgress) decide(s Sandbox) ([]proto.Message, error) {
	switch {
	case !s.Exists():
		return nil, notFound(s.ID)
	case !stepEgress.possible(s.State):
		return nil, illegal(s.State, "another egress")
	case c.Egress == nil:
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "there is no egress; one without a rule allows nothing")
	}
	if err := checkEgress(c.Egress); err != nil {
		return nil, err
	}
	switch {
	case s.Egress != nil && proto.Equal(c.Egress, s.Egress):
		return nil, nil
	case s.EgressSets >= MaxEgressSets:
		return nil, fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "the egress of sandbox %s was changed %d times, as often as it may", s.ID, MaxEgressSets)
	}
	return one(&eventsv1.SandboxEgressSet{Egress: proto.CloneOf(c.Egress)})
}

func checkEgress(e *eventsv1.Egress) error {
	_, wrong := egress.Read(e)
	if len(wrong) == 0 {
		return nil
	}
	fields := make(map[string]string, len(wrong))
	for path, what := range wrong {
		fields["egress."+path] = what
	}
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the egress is not valid").WithFields(fields)
}
