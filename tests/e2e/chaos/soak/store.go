package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// streams adds what JetStream says of each stream and consumer, and what the files of its store take on the disk.
func streams(ctx context.Context, js jetstream.JetStream, dir string, into map[string]float64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := js.ListStreams(ctx)
	for info := range all.Info() {
		name := "store." + info.Config.Name
		into[name+".messages"] = float64(info.State.Msgs)
		into["store.subjects"] += float64(info.State.NumSubjects)
		s, err := js.Stream(ctx, info.Config.Name)
		if err != nil {
			return fmt.Errorf("look at the store: %w", err)
		}
		consumers := s.ListConsumers(ctx)
		count := 0.0
		for c := range consumers.Info() {
			count++
			into["lag."+c.Stream+".pending"] += float64(c.NumPending)
			into["lag."+c.Stream+".unacknowledged"] += float64(c.NumAckPending)
		}
		if err := consumers.Err(); err != nil {
			return fmt.Errorf("look at the store: %w", err)
		}
		into["store.consumers"] += count
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("look at the store: %w", err)
	}
	// Below the account's directory; of several servers it is the sum.
	found, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "*"))
	if err != nil {
		return err
	}
	more, err := filepath.Glob(filepath.Join(dir, "*", "jetstream", "*", "streams", "*"))
	if err != nil {
		return err
	}
	for _, path := range append(found, more...) {
		bytes, _, err := usage(path)
		if err != nil {
			return err
		}
		into["store."+filepath.Base(path)+".disk_bytes"] += bytes
	}
	return nil
}

// usage is what the files below a path take on the disk, and how many there are. What goes away meanwhile is left out.
func usage(path string) (bytes, files float64, err error) {
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return unlessGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return unlessGone(err)
		}
		if !d.IsDir() {
			files++
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += float64(st.Blocks) * 512
		}
		return nil
	})
	return bytes, files, err
}

// directories adds how many files there are in each directory of the state, and what they take. The images do not change.
func directories(state string, into map[string]float64) error {
	entries, err := os.ReadDir(state)
	if err != nil {
		return fmt.Errorf("look at the state: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "images" {
			continue
		}
		bytes, files, err := usage(filepath.Join(state, e.Name()))
		if err != nil {
			return fmt.Errorf("look at the state: %w", err)
		}
		into["files."+e.Name()+".count"], into["files."+e.Name()+".disk_bytes"] = files, bytes
	}
	return nil
}

// queries of usage and their lines. The tables' parts are shown to the administrator only.
var queries = []struct {
	sql   string
	admin bool
	lines []string
}{
	{"SELECT (SELECT count() FROM agents.usage_events) + (SELECT count() FROM agents.sandbox_usage)", false, []string{"tables.rows"}},
	{"SELECT sum(bytes_on_disk), count() FROM system.parts WHERE active AND database = 'agents'", true, []string{"tables.disk_bytes", "tables.parts"}},
}

// tables adds the rows of usage and, where the administrator's password is known, the parts and bytes of its tables.
func tables(ctx context.Context, at, password string, into map[string]float64) error {
	for _, q := range queries {
		if q.admin && password == "" {
			continue
		}
		values, err := ask(ctx, at, q.sql, q.admin, password)
		if err == nil && len(values) != len(q.lines) {
			err = fmt.Errorf("%d values instead of %d", len(values), len(q.lines))
		}
		if err != nil {
			return fmt.Errorf("look at the tables: %w", err)
		}
		for i, line := range q.lines {
			into[line] = values[i]
		}
	}
	return nil
}

// ask gives the values of the one row of a query's answer.
func ask(ctx context.Context, at, sql string, admin bool, password string) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/", strings.NewReader(sql+" FORMAT TSV"))
	if err != nil {
		return nil, err
	}
	if admin {
		req.SetBasicAuth(rig.Administrator, password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, errors.Join(err, fmt.Errorf("%s: %q", res.Status, data))
	}
	var values []float64
	for _, field := range strings.Fields(string(data)) {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}
