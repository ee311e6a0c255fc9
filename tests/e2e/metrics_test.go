package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestMetricsAreDocumentedAndBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes")
	}
	s := stack.Up(t)
	id := s.Create(t)
	exec := s.Exec(t, id, "true")
	s.Usage(t, exec.ID)
	// Metrics with labels are there from the first call on.
	for _, path := range []string{"/api/v1/sandbox/" + id + "/status", "/api/v1/poders"} {
		answer, err := http.Get("http://" + s.HTTP + path)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
	}
	res, err := http.Get("http://" + s.HTTP + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)

	served := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:sandtrail|grpc)_\S+)`).FindAllSubmatch(body, -1) {
		served[string(m[1])] = true
	}
	require.Greater(t, len(served), 15)
	page, err := os.ReadFile(filepath.Join(stack.Root(t), "docs/OBSERVABILITY.md"))
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`((?:sandtrail|grpc)_[a-z_]+)`").FindAllSubmatch(page, -1) {
		documented[string(m[1])] = true
		require.True(t, served[string(m[1])], "%s is documented and not served", m[1])
	}
	for name := range served {
		if regexp.MustCompile(`^sandtrail_`).MatchString(name) {
			require.True(t, documented[name], "%s is served and not documented", name)
		}
	}
	pages, err := filepath.Glob(filepath.Join(stack.Root(t), "docs/*/*.md"))
	require.NoError(t, err)
	for _, path := range append(pages, filepath.Join(stack.Root(t), "docs/OBSERVABILITY.md")) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\bsandtrail_[a-z_]+`).FindAllString(string(text), -1) {
			if m != "sandtrail_usage_schema" { // a table
				require.True(t, served[strings.TrimSuffix(m, "_count")], "%s is named in %s and not served", m, path)
			}
		}
	}
	for _, value := range []string{id, exec.ID, "acme"} {
		require.NotContains(t, string(body), value, "a label holds an id")
	}
}
