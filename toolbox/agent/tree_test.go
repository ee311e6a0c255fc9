package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// procfs is a directory like /proc: of each directory's name, the pid and the parent that its stat tells.
func procfs(t *testing.T, stats map[string][2]int) string {
	t.Helper()
	dir := t.TempDir()
	for name, s := range stats {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		stat := fmt.Sprintf("%d (a) b) S %d %d %d%s\n", s[0], s[1], s[0], s[0], strings.Repeat(" 7", 18))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "stat"), []byte(stat), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "self"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "9999"), 0o755))
	return dir
}

// However strange what /proc tells while processes come and go: the walk ends, and finds each process below once.
func TestAWalkOverProcessesEnds(t *testing.T) {
	for name, c := range map[string]struct {
		stats map[string][2]int
		want  []int
	}{
		"children and theirs":            {map[string][2]int{"1": {1, 0}, "2": {2, 1}, "3": {3, 2}, "4": {4, 3}}, []int{2, 3, 4}},
		"one waited for has the pid 0":   {map[string][2]int{"1": {1, 0}, "2": {2, 1}, "3": {0, 1}}, []int{2}},
		"and the parent 0":               {map[string][2]int{"1": {1, 0}, "2": {2, 1}, "3": {0, 0}}, []int{2}},
		"its own parent":                 {map[string][2]int{"1": {1, 0}, "2": {2, 1}, "3": {3, 3}}, []int{2}},
		"a ring beside":                  {map[string][2]int{"1": {1, 0}, "2": {2, 1}, "3": {3, 4}, "4": {4, 3}}, []int{2}},
		"a ring over the first":          {map[string][2]int{"1": {1, 2}, "2": {2, 1}}, []int{2}},
		"a pid that is another's by now": {map[string][2]int{"1": {1, 0}, "2": {2, 1}, "3": {2, 1}}, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := procfs(t, c.stats)
			type result struct {
				found []process
				err   error
			}
			done := make(chan result, 1)
			go func() {
				found, err := descendants(1, dir)
				done <- result{found, err}
			}()
			select {
			case r := <-done:
				require.NoError(t, r.err)
				pids := []int{}
				for _, p := range r.found {
					pids = append(pids, p.pid)
				}
				require.Equal(t, c.want, pids)
			case <-time.After(10 * time.Second):
				t.Fatal("it goes round and round")
			}
		})
	}
}
