package fault

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

//go:generate go test . -run TestReferenceIsCurrent -update

var update = flag.Bool("update", false, "write docs/reference/errors.md anew")

const reference = "../../docs/reference/errors.md"

const head = `<!-- Made from libs/fault by ` + "`go generate ./libs/fault`" + `. Change it there. -->
# Errors

Every failed call has a gRPC status, and in its details ` + "`common.v1.ErrorDetail`: `code`, `reason`, a `message` that is safe to show, `fields` where the request was wrong, `retry_after_seconds` where trying again may help, and `correlation_id`, under which the call stands in logs, events and traces (also in the response header `x-correlation-id`)" + `. Programs switch on ` + "`reason`" + `; messages may change. ABORTED is a race: try again; ALREADY_EXISTS: the thing is there and is another one. The same reasons stand in sandboxes that failed and in receipts of execs.

A thing of another tenant is answered like one that does not exist. A request that is refused has changed nothing.

`

// page is docs/reference/errors.md.
func page() string {
	var b strings.Builder
	b.WriteString(head)
	b.WriteString("| code | gRPC |\n|---|---|\n")
	for _, c := range slices.Sorted(maps.Keys(grpcCodes)) {
		fmt.Fprintf(&b, "| %s | %s |\n", c, grpcNames(append([]codes.Code{grpcCodes[c]}, more(c)...)))
	}
	b.WriteString("\n| reason | code | gRPC | means | try again | do |\n|---|---|---|---|---|---|\n")
	for _, e := range catalog {
		var names []string
		for _, c := range e.Codes {
			names = append(names, string(c))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", e.Reason, strings.Join(names, ", "), grpcNames(e.GRPC()), e.Means, e.Retry, e.Do)
	}
	return b.String()
}

// more are the gRPC codes of a code beside the usual one.
func more(c Code) (all []codes.Code) {
	for _, r := range slices.Sorted(maps.Keys(existing)) {
		if g := grpcCode(New(c, r, "")); g != grpcCodes[c] && !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

func grpcNames(all []codes.Code) string {
	var names []string
	for _, c := range all {
		var b strings.Builder
		for i, r := range c.String() {
			if i > 0 && r >= 'A' && r <= 'Z' && c != codes.OK {
				b.WriteByte('_')
			}
			b.WriteString(strings.ToUpper(string(r)))
		}
		names = append(names, strings.ReplaceAll(b.String(), "CANCELED", "CANCELLED"))
	}
	return strings.Join(names, ", ")
}

func TestReferenceIsCurrent(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(page()), 0o644))
	}
	stored, err := os.ReadFile(reference)
	require.NoError(t, err)
	if page() != string(stored) {
		require.Fail(t, "docs/reference/errors.md is not what the catalog says", "run `go generate ./libs/fault`")
	}
}

// declared are the constants of a type in this package, by name.
func declared(t *testing.T, typ string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	require.NoError(t, err)
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if of, ok := v.Type.(*ast.Ident); !ok || of.Name != typ {
			return true
		}
		text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		all[v.Names[0].Name] = text
		return true
	})
	return all
}

func TestCatalogHasEveryReasonOnce(t *testing.T) {
	var listed []string
	for _, e := range Catalog() {
		listed = append(listed, string(e.Reason))
		require.NotEmpty(t, e.Codes, e.Reason)
		require.NotEmpty(t, e.GRPC(), e.Reason)
		require.NotContains(t, e.GRPC(), codes.OK, e.Reason)
		require.NotContains(t, e.GRPC(), codes.Unknown, e.Reason)
		require.NotEmpty(t, e.Retry, e.Reason)
		require.Greater(t, len(e.Means), 10, e.Reason)
		require.NotEmpty(t, e.Do, e.Reason)
		for _, text := range []string{e.Means, e.Do, string(e.Retry)} {
			require.NotContains(t, text, "|", "it would end a cell of the table")
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Values(declared(t, "Reason"))), listed)
	require.ElementsMatch(t, slices.Collect(maps.Values(declared(t, "Code"))), slices.Collect(func(yield func(string) bool) {
		for c := range grpcCodes {
			if !yield(string(c)) {
				return
			}
		}
	}))
}

// use is one place in the source that makes a fault of a code and a reason.
type use struct{ at, code, reason string }

// uses are all places where the code and the reason stand in the call itself, outside of tests and of what helps them.
func uses(t *testing.T) (all []use) {
	t.Helper()
	codeOf, reasonOf := declared(t, "Code"), declared(t, "Reason")
	// text is what an argument says: a constant of this package, or a literal.
	text := func(names map[string]string, arg ast.Expr) string {
		switch a := arg.(type) {
		case *ast.SelectorExpr:
			return names[a.Sel.Name]
		case *ast.Ident:
			return names[a.Name]
		case *ast.BasicLit:
			s, _ := strconv.Unquote(a.Value)
			return s
		}
		return ""
	}
	for _, root := range []string{"libs", "services", "toolbox", "cmd"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("../..", root), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "toolboxtest") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) < 3 {
					return true
				}
				name := ""
				switch f := call.Fun.(type) {
				case *ast.Ident:
					name = file.Name.Name + "." + f.Name
				case *ast.SelectorExpr:
					if x, ok := f.X.(*ast.Ident); ok {
						name = x.Name + "." + f.Sel.Name
					}
				}
				if name != "fault.New" && name != "fault.Newf" && name != "wire.NewError" {
					return true
				}
				u := use{files.Position(n.Pos()).String(), text(codeOf, call.Args[0]), text(reasonOf, call.Args[1])}
				if u.code != "" && u.reason != "" {
					all = append(all, u)
				}
				return true
			})
			return nil
		}))
	}
	return all
}

// What the page says of codes is what the source does.
func TestCatalogHasTheCodesThatReasonsComeWith(t *testing.T) {
	found := uses(t)
	require.Greater(t, len(found), 150)
	for _, u := range found {
		i := slices.IndexFunc(catalog, func(e Entry) bool { return string(e.Reason) == u.reason })
		require.GreaterOrEqual(t, i, 0, "%s: the reason %q is no constant of this package", u.at, u.reason)
		require.Contains(t, catalog[i].Codes, Code(u.code), "%s: the catalog does not know that %s comes with this code", u.at, u.reason)
	}
}
