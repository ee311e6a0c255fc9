package figure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

// rowPatience is how long a row is waited for.
const rowPatience = 30 * time.Second

// readable is the time from an exec's end at the client until its row can be read in ClickHouse.
func readable(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	up, box, remove, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(&err)
	b.say("usage: %d rows", b.Runs)
	var took sample.Values
	for range b.Runs {
		res, err := up.Exec(ctx, box.ID, nil, "true")
		if err != nil {
			return nil, err
		}
		if err := row(ctx, up, res.Completed.GetUsageEventId()); err != nil {
			return nil, err
		}
		took.Took(res.At)
	}
	return []report.Row{{
		Name: "row of an exec readable after completed", Unit: "ms", Ours: took.Median(), Baseline: report.None, Samples: len(took),
		Note: fmt.Sprintf("SELECT from agents.usage_events by HTTP, asked every 5 ms; p90 %.0f ms.", took.Quantile(0.9)),
	}, {
		Name: "the slowest of them", Unit: "ms", Ours: took.Max(), Baseline: report.None, Target: report.AtMost(2000),
	}}, nil
}

// row waits until the row with the id is there.
func row(ctx context.Context, up *live.Up, id string) error {
	ctx, cancel := context.WithTimeout(ctx, rowPatience)
	defer cancel()
	query := "SELECT count() FROM agents.usage_events WHERE id = '" + id + "'"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, up.ClickHouse, strings.NewReader(query))
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return fmt.Errorf("row of usage event %s: %w", id, err)
		}
		text, err := io.ReadAll(io.LimitReader(res.Body, 4096))
		res.Body.Close()
		switch {
		case err != nil:
			return err
		case res.StatusCode != http.StatusOK:
			return errors.New(string(text))
		case strings.TrimSpace(string(text)) == "1":
			return nil
		}
		if err := rest(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("row of usage event %s: %w", id, err)
		}
	}
}
