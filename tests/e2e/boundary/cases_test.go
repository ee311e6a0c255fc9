package boundary

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`([a-z0-9_/]+)\\.(Test[A-Za-z0-9_]+)`")

// missing are the tests that a page names and the tree does not have, and the rows of a table of cases that name none.
func missing(page string, has func(dir, test string) bool) (wrong []string) {
	section := ""
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		found := namedTest.FindAllStringSubmatch(line, -1)
		row := strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") && !strings.Contains(line, "| right |")
		if row && section != "Later" && len(found) == 0 {
			wrong = append(wrong, "no test: "+strings.TrimSpace(line))
		}
		for _, f := range found {
			if !has(f[1], f[2]) {
				wrong = append(wrong, "not in the tree: "+f[1]+"."+f[2])
			}
		}
	}
	return wrong
}

func TestEachCaseFromTheFieldHasATest(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(namedTest.FindAllString(string(page), -1)); n < 100 {
		t.Fatalf("the page names only %d tests: it is not read right", n)
	}
	sources := map[string]string{}
	for _, wrong := range missing(string(page), func(dir, test string) bool {
		if _, read := sources[dir]; !read {
			files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range files {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				sources[dir] += string(text)
			}
		}
		return strings.Contains(sources[dir], "\nfunc "+test+"(t *testing.T) {")
	}) {
		t.Error(wrong)
	}
}

func TestMissingTestsAreSeen(t *testing.T) {
	has := func(dir, test string) bool { return dir == "libs/x" && test == "TestThere" }
	const head = "## A\n\n| reported | source | right | tests |\n|---|---|---|---|\n"
	for page, want := range map[string]int{
		head + "| a | b 1 | c | `libs/x.TestThere` |\n":                                 0,
		head + "| a | b 1 | c | `libs/x.TestThere` `libs/x.TestGone` |\n":               1,
		head + "| a | b 1 | c | `libs/y.TestThere` |\n":                                 1,
		head + "| a | b 1 | c | |\n":                                                    1,
		"## Later\n\n| reported | source | right | needs |\n|---|\n| a | b | c | d |\n": 0,
	} {
		if got := missing(page, has); len(got) != want {
			t.Errorf("%q: %q", page, got)
		}
	}
}
