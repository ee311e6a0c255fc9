package render

import (
	"slices"
	"strings"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

// LimitsMet is a sentence for each limit that a command met, without that of CPU time, which a busy command meets as a rule, and
// without what said already says.
func LimitsMet(hits []*commonv1.LimitHit, said string) []string {
	var all []string
	for _, hit := range hits {
		if hit.GetLimit() != "cpu" && !strings.Contains(said, hit.GetMessage()) {
			all = append(all, "limit met ("+hit.GetLimit()+"): "+hit.GetMessage())
		}
	}
	return all
}

// limitNames are the names of the limits met, each once, for a line among others.
func limitNames(hits []*commonv1.LimitHit) string {
	var names []string
	for _, hit := range hits {
		if !slices.Contains(names, hit.GetLimit()) {
			names = append(names, hit.GetLimit())
		}
	}
	return strings.Join(names, ", ")
}
