package render_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/sandtrail/sandtrail/deploy/k8s/render"
)

func TestWhatIsMadeFromCodeIsUpToDate(t *testing.T) {
	files, err := render.Generated(dir)
	require.NoError(t, err)
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, "run: make deploy")
		require.Equal(t, string(want), string(have), "%s; run: make deploy", name)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "base"))
	require.NoError(t, err)
	for _, e := range entries {
		require.Contains(t, files, "base/"+e.Name(), "run: make deploy")
	}
}

func TestKustomizeBuildsTheChart(t *testing.T) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(dir, "base"))
	require.NoError(t, err)
	chart, err := render.Chart(filepath.Join(dir, "chart"), render.Release{Name: "sandtrail", Namespace: "sandtrail"}, nil)
	require.NoError(t, err)
	require.Equal(t, len(chart.Objects), built.Size())
	for _, o := range chart.Objects {
		same := 0
		for _, r := range built.Resources() {
			if r.GetKind() != o.GetKind() || r.GetName() != o.GetName() || r.GetNamespace() != o.GetNamespace() {
				continue
			}
			same++
			want := o.DeepCopy()
			labels := want.GetLabels()
			labels["app.kubernetes.io/managed-by"] = "kustomize"
			want.SetLabels(labels)
			data, err := want.MarshalJSON()
			require.NoError(t, err)
			have, err := r.MarshalJSON()
			require.NoError(t, err)
			require.JSONEq(t, string(data), string(have))
		}
		require.Equal(t, 1, same, "%s %s", o.GetKind(), o.GetName())
	}
}

var metric = regexp.MustCompile(`\b(?:sandtrail|grpc_server)_[a-z_]+[a-z]\b`)

func TestEachMetricThatIsNamedExists(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(dir, "../../docs/OBSERVABILITY.md"))
	require.NoError(t, err)
	exist := metric.FindAllString(string(page), -1)
	named := func(text string) (missing []string) {
		for _, m := range metric.FindAllString(text, -1) {
			base := m
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !slices.Contains(exist, m) && !slices.Contains(exist, base) {
				missing = append(missing, m)
			}
		}
		return missing
	}
	require.Equal(t, []string{"sandtrail_nothing_total"}, named("rate(sandtrail_nothing_total[5m])"))
	uses := 0
	for _, path := range []string{"chart/files/alerts.yaml", "chart/files/dashboard.json", "chart/files/usage-dashboard.json", "chart/templates/autoscaling.yaml"} {
		text, err := os.ReadFile(filepath.Join(dir, path))
		require.NoError(t, err)
		require.Empty(t, named(string(text)), path)
		uses += len(metric.FindAllString(string(text), -1))
	}
	require.Greater(t, uses, 30)
}
