package app_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// A real server answers every question of the dashboard, and most of them with something.
func TestTheQuestionsOfTheUsageDashboardHaveAnswers(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/k8s/chart/files/usage-dashboard.json")
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ RawSQL string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &d))
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	serve(t, n, e.URL())
	newAuthor(t, n.JS, 6).write(400)
	same(t, n.JS, e.URL())
	_, err = app.AddPrices(t.Context(), e.URL(), []metering.Price{{Meter: metering.Execs, Nanos: 1, Per: 1, Currency: "EUR"}}, true)
	require.NoError(t, err)
	macro := regexp.MustCompile(`\$__timeFilter\((\w+)\)`)
	asked, empty := 0, []string{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			if q.RawSQL == "" {
				continue
			}
			asked++
			query := macro.ReplaceAllString(strings.ReplaceAll(q.RawSQL, "${tenant:singlequote}", "'tenant-0','tenant-1'"), "$1 > '2000-01-01'")
			require.NotContains(t, query, "$")
			if ask(t, e.HTTP(), query) == "" {
				empty = append(empty, p.Title)
			}
		}
	}
	require.Equal(t, 12, asked)
	// Everything may have happened in the month before.
	require.Subset(t, []string{"Hours that were reopened", "Invoice lines of this month", "Cost by meter, this month"}, empty)
}
