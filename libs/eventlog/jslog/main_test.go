package jslog

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The property test publishes thousands of batches: 25 runs take a few seconds. The command line has the last word, for a long
// run: go test ./eventlog/jslog -run BadNetwork -rapid.checks=1000
func TestMain(m *testing.M) {
	if dir := os.Getenv(serverDir); dir != "" {
		serve(dir)
		return
	}
	for name, value := range map[string]string{"rapid.checks": "25", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}
