package boundary

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const maxLines = 500

// unwanted is what no line of a tracked file may say. The words are put together here, since this file is tracked as well.
var unwanted = []struct {
	re  *regexp.Regexp
	why string
}{
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`), "something is left to do"},
	{regexp.MustCompile(`(^|[^\w.*}-])/(wo` + `rk|tmp/s` + `t)(/|[^\w/.-]|$)`), "a path of one machine"},
	{regexp.MustCompile(`/ro` + `ot/(go|\.cache)\b|/usr/lo` + `cal/go\b|\.\./sha` + `red\b`), "a path of one machine"},
	{regexp.MustCompile(`DES` + `IGN\.md|[Ii]ssue \d+ o` + `f \d`), "names a document that is not here"},
	{regexp.MustCompile(`(?i)\bwork` + `place\b|\bhel` + `per session|\bsub-?ag` + `ents?\b|\bcla` + `ude\b|\bchat` + `gpt\b|\bco-auth` + `ored-by\b`), "speaks of how it was written"},
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// made are pages that a program writes: their length is that of what they are about.
var made = regexp.MustCompile(`\A<!-- Made by .* -->\n`)

// faults says what is wrong with a tracked file, each with its line.
func faults(path string, content []byte) []string {
	switch {
	case strings.HasPrefix(path, "proto/third_party/"), strings.HasSuffix(path, ".sum"):
		return nil
	case bytes.HasPrefix(content, []byte("\x7fELF")):
		return []string{"1: a built program"}
	case strings.Contains(path, "testdata/rapid/"):
		return []string{"1: a failure that a test wrote down"}
	case bytes.IndexByte(content, 0) >= 0 || generated.Match(content):
		return nil
	}
	var found []string
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	if len(lines) > maxLines && !made.Match(content) {
		found = append(found, fmt.Sprintf("%d: longer than %d lines", len(lines), maxLines))
	}
	for i, line := range lines {
		for _, u := range unwanted {
			if m := u.re.FindString(line); m != "" {
				found = append(found, fmt.Sprintf("%d: %q: %s", i+1, m, u.why))
			}
		}
	}
	if filepath.Ext(path) == ".go" {
		found = append(found, testFaults(path, content)...)
	}
	return found
}

// testFaults looks at test code: whatever imports testing.
func testFaults(path string, content []byte) []string {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	if !importsTesting(f) {
		return nil
	}
	var found []string
	add := func(n ast.Node, why string) {
		found = append(found, fmt.Sprintf("%d: %s", files.Position(n.Pos()).Line, why))
	}
	var above []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return true
		}
		above = append(above, n)
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		on, method := selector(call)
		switch method {
		case "Sleep":
			if on == "time" {
				add(n, "a test sleeps: wait for what you wait for")
			}
		case "Skip", "Skipf", "SkipNow":
			if on != "" && !short(above, call) && !discards(above, on) {
				add(n, "a test is skipped for another reason than `if testing.Short()`, or does not say \"-short: …\"")
			}
		}
		return true
	})
	return found
}

func importsTesting(f *ast.File) bool {
	for _, i := range f.Imports {
		if i.Path.Value == `"testing"` {
			return true
		}
	}
	return false
}

// selector is "x", "F" of a call x.F(…), and empty for any other.
func selector(call *ast.CallExpr) (on, name string) {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		on = x.Name
	}
	return on, s.Sel.Name
}

// short says whether the call is t.Skip("-short: …") and the innermost if around it is `if testing.Short()`.
func short(above []ast.Node, call *ast.CallExpr) bool {
	if _, name := selector(call); name != "Skip" || len(call.Args) != 1 {
		return false
	}
	why, ok := call.Args[0].(*ast.BasicLit)
	if !ok || !strings.HasPrefix(why.Value, `"-short: `) {
		return false
	}
	for i := len(above) - 1; i > 0; i-- {
		guard, ok := above[i-1].(*ast.IfStmt)
		if !ok {
			continue
		}
		cond, ok := guard.Cond.(*ast.CallExpr)
		if !ok || above[i] != guard.Body {
			return false
		}
		on, name := selector(cond)
		return on == "testing" && name == "Short"
	}
	return false
}

// discards says whether name is a *rapid.T: its Skip drops one drawn step, and the test goes on.
func discards(above []ast.Node, name string) bool {
	for i := len(above) - 1; i >= 0; i-- {
		var params *ast.FieldList
		switch fn := above[i].(type) {
		case *ast.FuncDecl:
			params = fn.Type.Params
		case *ast.FuncLit:
			params = fn.Type.Params
		default:
			continue
		}
		for _, p := range params.List {
			for _, n := range p.Names {
				if n.Name != name {
					continue
				}
				star, ok := p.Type.(*ast.StarExpr)
				if !ok {
					return false
				}
				s, ok := star.X.(*ast.SelectorExpr)
				if !ok {
					return false
				}
				x, ok := s.X.(*ast.Ident)
				return ok && x.Name == "rapid"
			}
		}
	}
	return false
}

func TestTrackedFilesAreClean(t *testing.T) {
	// A checkout may belong to another user than the one that runs tests.
	cmd := exec.CommandContext(t.Context(), "git", "-c", "safe.directory=*", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	paths := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(paths) < 100 {
		t.Fatalf("only %d files are tracked: the list went wrong", len(paths))
	}
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range faults(path, content) {
			t.Errorf("%s:%s", path, f)
		}
	}
}

func TestFaultsAreSeen(t *testing.T) {
	test := func(body string) string {
		return "package x\n\nimport (\n\t\"testing\"\n\t\"time\"\n)\n\nfunc TestX(t *testing.T) {\n" + body + "\n}\n"
	}
	for name, f := range map[string]struct{ path, content string }{
		"left to do":         {"a.md", "x\n// TO" + "DO: later\n"},
		"to mend":            {"a/b.go", "package a // FIX" + "ME\n"},
		"tree":               {"a.sh", "cd /wo" + "rk/main\n"},
		"tree, bare":         {"a.sh", "cd '/wo" + "rk'\n"},
		"scratch":            {"a.md", "see /tmp/s" + "t/bin\n"},
		"module cache":       {"a.md", "/ro" + "ot/go/pkg\n"},
		"neighbour":          {"a.md", "see ../sha" + "red/x.md\n"},
		"document":           {"a.md", "as DES" + "IGN.md says\n"},
		"issue":              {"a.md", "this is issue 2 o" + "f 6\n"},
		"who wrote it":       {"a.md", "written by Cla" + "ude\n"},
		"long":               {"a.go", "package a\n" + strings.Repeat("\n", maxLines)},
		"program":            {"bin/x", "\x7fELF\x02"},
		"written failure":    {"a/testdata/rapid/TestX/x.fail", "v0.4.8#1\n"},
		"sleep":              {"a_test.go", test("\ttime.Sleep(1)")},
		"sleep in a package": {"atest/a.go", test("\ttime.Sleep(1)")},
		"skip":               {"a_test.go", test("\tt.Skip(\"-short: no\")")},
		"skip on another condition": {
			"a_test.go", test("\tif time.Now().IsZero() {\n\t\tt.Skip(\"-short: no\")\n\t}"),
		},
		"skip on two conditions": {
			"a_test.go", test("\tif testing.Short() || time.Now().IsZero() {\n\t\tt.Skip(\"-short: no\")\n\t}"),
		},
		"skip in the other branch": {
			"a_test.go", test("\tif testing.Short() {\n\t} else {\n\t\tt.Skip(\"-short: no\")\n\t}"),
		},
		"skip without saying why": {"a_test.go", test("\tif testing.Short() {\n\t\tt.SkipNow()\n\t}")},
		"skip of a subtest": {
			"a_test.go", test("\tt.Run(\"\", func(tt *testing.T) { tt.Skipf(\"%s\", \"\") })"),
		},
	} {
		if len(faults(f.path, []byte(f.content))) != 1 {
			t.Errorf("%s: %q", name, faults(f.path, []byte(f.content)))
		}
	}
	for name, f := range map[string]struct{ path, content string }{
		"workspace":           {"a.go", "package a\n\nconst dir = \"/workspace\" // of 6, see issue 2\n"},
		"module":              {"a.go", "package a\n\nimport _ \"x/internal/work\"\n"},
		"sleep":               {"a.go", "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"},
		"a page that is made": {"a.md", "<!-- Made by x. -->\n" + strings.Repeat("\n", maxLines)},
		"generated":           {"a.go", "// Code generated by x. DO NOT EDIT.\n" + strings.Repeat("\n", maxLines)},
		"as long as may":      {"a.go", "package a" + strings.Repeat("\n", maxLines)},
		"skip on -short":      {"a_test.go", test("\tif testing.Short() {\n\t\tt.Skip(\"-short: takes a minute\")\n\t}")},
		"a step not made":     {"a_test.go", test("\t_ = func(t *rapid.T) { t.Skip(\"nothing yet\") }")},
	} {
		if got := faults(f.path, []byte(f.content)); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}
