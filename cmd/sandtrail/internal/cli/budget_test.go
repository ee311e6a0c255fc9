package cli_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
)

type budgetLine struct {
	Tenant     string   `json:"tenant_id"`
	Version    uint32   `json:"version"`
	Amount     string   `json:"amount"`
	Currency   string   `json:"currency"`
	Thresholds []uint32 `json:"thresholds"`
	State      string   `json:"state"`
	Until      string   `json:"refuses_until"`
	Month      string   `json:"month"`
	Reached    []struct {
		Month     string `json:"month"`
		Threshold uint32 `json:"threshold"`
		Spent     string `json:"spent"`
	} `json:"reached"`
}

func TestBudgetsOfATenant(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	t.Setenv("SANDTRAIL_OPERATOR", "ann")
	r := runCLI(nil, nil, "budget", "set", "--tenant", "acme", "--amount", "1", "--currency", "EUR")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "there is no tenant acme")
	said[map[string]any](t, "tenant", "create", "acme")
	said[map[string]any](t, "tenant", "create", "other")
	for _, bad := range [][]string{
		{"--amount", "1"}, {"--currency", "EUR"}, {"--amount", "1", "--currency", "EUR", "--threshold", "x"}, {"--amount", "1", "--currency", "EUR", "--tenant", "a.b"},
	} {
		require.Equal(t, cli.ExitUsage, runCLI(nil, nil, append([]string{"budget", "set", "--tenant", "acme"}, bad...)...).code, "%v", bad)
	}
	for _, bad := range [][]string{{"--amount", "0", "--currency", "EUR"}, {"--amount", "1", "--currency", "euro"}, {"--amount", "1", "--currency", "EUR", "--threshold", "0"}} {
		require.NotZero(t, runCLI(nil, nil, append([]string{"budget", "set", "--tenant", "acme"}, bad...)...).code, "%v", bad)
	}
	set := said[budgetLine](t, "budget", "set", "--tenant", "acme", "--amount", "12.50", "--currency", "EUR", "--threshold", "80,50", "--refuse")
	require.Equal(t, budgetLine{
		Tenant: "acme", Version: 1, Amount: "12.5", Currency: "EUR", Thresholds: []uint32{50, 80, 100}, State: "watching", Month: set.Month, Reached: set.Reached,
	}, set)
	require.Empty(t, set.Reached)

	log := jslog.New(f.JS)
	period, end := tenant.Period(time.Now())
	_, err := eventlog.Execute(t.Context(), log, subject.Budget("acme"), func(h eventlog.History) ([]envelope.Event, error) {
		acme, err := eventlog.Current(t.Context(), log, subject.Tenant("acme"))
		s := tenant.FoldBudget(tenant.Fold(acme).Budget, h.Events)
		bodies := s.Reach(tenant.ReachBudget{Version: 1, Period: period, Spent: big.NewInt(12e9), Projected: big.NewInt(13e9), AtSeq: 3})
		return tenant.BudgetEvents("acme", "service:usage", time.Now(), bodies...), err
	})
	require.NoError(t, err)
	shown := said[budgetLine](t, "budget", "show", "--tenant", "acme")
	require.Equal(t, "refusing", shown.State)
	require.Equal(t, end.Format(time.RFC3339), shown.Until)
	require.Len(t, shown.Reached, 3)
	require.Equal(t, "12", shown.Reached[2].Spent)
	require.Regexp(t, `acme +12\.5 +EUR +50%,80%,100% +true +50%,80%,100% +refusing`, runCLI(nil, nil, "budget", "ls").stdout)
	require.Len(t, said[[]budgetLine](t, "budget", "ls"), 1)
	require.Equal(t, "none", said[budgetLine](t, "budget", "show", "--tenant", "other").State)

	raised := said[budgetLine](t, "budget", "set", "--tenant", "acme", "--amount", "20", "--currency", "EUR", "--refuse")
	require.Equal(t, "watching", raised.State)
	require.EqualValues(t, 2, raised.Version)
	require.Equal(t, "none", said[budgetLine](t, "budget", "rm", "--tenant", "acme").State)
	require.Empty(t, said[[]budgetLine](t, "budget", "ls"))
}
