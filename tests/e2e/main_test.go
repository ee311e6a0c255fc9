package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stack.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = 1
	}
	os.Exit(code)
}
