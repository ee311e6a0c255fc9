// Package boundary checks which module may import which, over the source of the whole tree.
package boundary

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sandtrail/sandtrail/"

// root is the top of the tree, seen from this package.
const root = "../../.."

type use struct{ file, from, path string }

// violation says why a file below directory from may not import path; empty when it may.
func violation(u use) string {
	own, inside := strings.CutPrefix(u.path, module)
	switch {
	case strings.HasPrefix(u.from, "services/") && inside && strings.HasPrefix(own, "services/") && service(own) != service(u.from):
		return "a service imports another"
	case strings.HasPrefix(own, "services/") && inside && !strings.HasPrefix(u.from, "services/") && !appOf(own):
		return "only services/x/app may be imported from outside"
	case strings.HasPrefix(u.from, "libs/") && inside && !strings.HasPrefix(own, "libs/") && !strings.HasPrefix(own, "proto/"):
		return "libs import libs and proto only"
	case strings.HasPrefix(u.from, "libs/") && (strings.HasPrefix(u.path, "k8s.io/") || strings.HasPrefix(u.path, "sigs.k8s.io/")):
		return "libs know no Kubernetes"
	case strings.HasPrefix(u.from, "libs/") && strings.Contains(strings.ToLower(u.path), "clickhouse"):
		return "libs know no ClickHouse"
	case strings.HasPrefix(u.from, "proto/") && inside && !strings.HasPrefix(own, "proto/"):
		return "proto imports nothing of ours"
	case strings.HasPrefix(u.from, "toolbox/") && inside && !strings.HasPrefix(own, "toolbox/") && !strings.HasPrefix(own, "proto/"):
		return "the toolbox stays small: it imports toolbox and proto only"
	}
	return ""
}

func service(path string) string {
	parts := strings.SplitN(path, "/", 3)
	return parts[1]
}

func appOf(path string) bool {
	parts := strings.Split(path, "/")
	return len(parts) == 3 && parts[2] == "app"
}

func imports(t *testing.T) []use {
	t.Helper()
	var all []use
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			all = append(all, use{file: rel, from: filepath.ToSlash(rel), path: p})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestImportBoundaries(t *testing.T) {
	all := imports(t)
	if len(all) < 100 {
		t.Fatalf("only %d imports found: the walk went wrong", len(all))
	}
	for _, u := range all {
		if why := violation(u); why != "" {
			t.Errorf("%s imports %s: %s", u.file, u.path, why)
		}
	}
}

func TestViolationsAreSeen(t *testing.T) {
	for _, u := range []use{
		{from: "services/gateway/app/app.go", path: module + "services/exec/app"},
		{from: "cmd/sandtrail/main.go", path: module + "services/exec/internal/relay"},
		{from: "libs/worker/worker.go", path: module + "services/exec/app"},
		{from: "libs/worker/worker.go", path: "k8s.io/client-go/kubernetes"},
		{from: "libs/worker/worker.go", path: "github.com/ClickHouse/clickhouse-go/v2"},
		{from: "libs/worker/worker.go", path: module + "toolbox/client"},
		{from: "proto/contract/doc.go", path: module + "libs/fault"},
		{from: "toolbox/keeper/keeper.go", path: module + "libs/fault"},
	} {
		if violation(u) == "" {
			t.Errorf("%s importing %s is let through", u.from, u.path)
		}
	}
	for _, u := range []use{
		{from: "services/gateway/app/app.go", path: module + "services/gateway/internal/api"},
		{from: "cmd/sandtrail/main.go", path: module + "services/exec/app"},
		{from: "services/exec/app/app.go", path: module + "libs/fault"},
	} {
		if why := violation(u); why != "" {
			t.Errorf("%s importing %s: %s", u.from, u.path, why)
		}
	}
}
