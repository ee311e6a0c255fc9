// Sandtrail runs the code of agents in isolated sandboxes; this is the program of its users.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	usage "github.com/sandtrail/sandtrail/services/usage/app"
)

func main() {
	// `up` runs the built-in ClickHouse as a child that is this program again.
	if usage.IsEngine() {
		os.Exit(usage.EngineMain())
	}
	os.Exit(cli.Main(os.Args[1:], cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Signals: func() (<-chan os.Signal, func()) {
			// Two: the first asks for an orderly end, the second for one at once.
			c := make(chan os.Signal, 2)
			signal.Notify(c, os.Interrupt, syscall.SIGTERM)
			return c, func() { signal.Stop(c) }
		},
	}))
}
