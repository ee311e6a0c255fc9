package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/ERRORS.md names every code and reason that callers can meet, and none that does not exist.
func TestDocumentationHasEveryCodeAndReason(t *testing.T) {
	page, err := os.ReadFile("../../docs/ERRORS.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, word := range regexp.MustCompile(`[a-z]+(?:_[a-z]+)*`).FindAllString(cells[1], -1) {
			documented[word] = true
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	require.NoError(t, err)
	declared := map[string]bool{"code": true, "reason": true}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				word, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				declared[word] = true
			}
		}
		return true
	})
	require.Greater(t, len(declared), 40)
	for word := range declared {
		require.True(t, documented[word], "docs/ERRORS.md does not have %q", word)
	}
	for word := range documented {
		require.True(t, declared[word], "docs/ERRORS.md has %q, which does not exist", word)
	}
}
