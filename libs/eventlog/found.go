package eventlog

import (
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Found is the answer of Find to the subjects that match a filter: the aggregate of the one there is. None is fault.NotFound;
// several are fault.Conflict, because an id that two tenants have says nothing about whose is meant.
func Found(filter string, subjects []string) (subject.Aggregate, error) {
	switch len(subjects) {
	case 0:
		if strings.Contains(filter, "."+string(subject.KindExec)+".") {
			return subject.Aggregate{}, fault.New(fault.NotFound, fault.ReasonExecNotFound, "there is no such exec")
		}
		return subject.Aggregate{}, fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "there is no such sandbox")
	case 1:
		agg, err := subject.ParseEvent(subjects[0])
		if err != nil {
			return agg, fault.From(err)
		}
		return agg, nil
	default:
		return subject.Aggregate{}, fault.New(fault.Conflict, fault.ReasonConflict, "the id is not unique")
	}
}
