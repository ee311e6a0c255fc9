// Command agent is the toolbox of a sandbox that is a pod. It is a program of its own because of TLS, which would make every keeper
// and every sandbox's init larger by a third.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/sandtrail/sandtrail/toolbox/agent"
	"github.com/sandtrail/sandtrail/toolbox/credentials"
	"github.com/sandtrail/sandtrail/toolbox/install"
	"github.com/sandtrail/sandtrail/toolbox/terminal"
	"github.com/sandtrail/sandtrail/toolbox/watch"
)

// version is set when the binary is built.
var version = "devel"

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "agent":
		os.Exit(agent.Main(os.Args[2:], os.Environ(), version, slog.New(slog.NewJSONHandler(os.Stderr, nil))))
	case terminal.Argument:
		os.Exit(terminal.Main(os.Args[2:]))
	case watch.Argument:
		os.Exit(watch.Main(os.Args[2:]))
	case "install":
		if len(os.Args) != 3 {
			usage()
		}
		if err := install.To(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "agent-ca":
		os.Exit(credentials.Main(os.Args[2:], os.Stderr))
	case "version":
		fmt.Println(version)
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: toolbox agent | terminal PROGRAM … | watch [recursive] | install DIRECTORY | agent-ca | version")
	os.Exit(2)
}
