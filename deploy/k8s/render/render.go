// Package render makes Kubernetes objects of the chart, as `helm template` does.
package render

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Release is what an installation is called and where it is.
type Release struct{ Name, Namespace string }

// Rendered is the outcome of a chart.
type Rendered struct {
	// Objects in the order of their kinds, namespaces and names. Those of `helm test` are in Tests.
	Objects, Tests []unstructured.Unstructured
	Notes          string
}

// Chart renders the chart in a directory with values over its own. Values that its schema refuses are an error.
func Chart(dir string, r Release, values map[string]any) (Rendered, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return Rendered{}, fmt.Errorf("load the chart: %w", err)
	}
	options := common.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return Rendered{}, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(context.Background(), chart, all)
	if err != nil {
		return Rendered{}, fmt.Errorf("render: %w", err)
	}
	var out Rendered
	for name, text := range files {
		if path.Base(name) == "NOTES.txt" {
			out.Notes = text
			continue
		}
		objects, err := parse(text)
		if err != nil {
			return Rendered{}, fmt.Errorf("%s: %w", name, err)
		}
		for _, o := range objects {
			if _, hook := o.GetAnnotations()["helm.sh/hook"]; hook {
				out.Tests = append(out.Tests, o)
			} else {
				out.Objects = append(out.Objects, o)
			}
		}
	}
	slices.SortFunc(out.Objects, func(a, b unstructured.Unstructured) int { return strings.Compare(key(a), key(b)) })
	return out, nil
}

func key(o unstructured.Unstructured) string {
	return strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, "/")
}

func parse(text string) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		var o unstructured.Unstructured
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}
