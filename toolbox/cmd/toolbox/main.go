// Command toolbox is what Sandtrail runs beside and inside a sandbox.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/sandtrail/sandtrail/toolbox/changes"
	"github.com/sandtrail/sandtrail/toolbox/connect"
	"github.com/sandtrail/sandtrail/toolbox/guest"
	"github.com/sandtrail/sandtrail/toolbox/install"
	"github.com/sandtrail/sandtrail/toolbox/keeper"
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
	case "keeper":
		log := slog.New(slog.NewJSONHandler(keeper.NewLog(os.Stderr), nil))
		os.Exit(keeper.Main(os.Stdin, os.Stdout, version, log))
	case "init":
		if err := guest.Init(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
	case terminal.Argument:
		os.Exit(terminal.Main(os.Args[2:]))
	case connect.Argument:
		os.Exit(connect.Main())
	case watch.Argument:
		os.Exit(watch.Main(os.Args[2:]))
	case watch.OutsideArgument:
		os.Exit(watch.MainOutside(os.Args[2:]))
	case changes.Argument:
		os.Exit(changes.Main())
	case "install":
		if len(os.Args) != 3 {
			usage()
		}
		if err := install.To(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "version":
		fmt.Println(version)
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: toolbox keeper | init | terminal PROGRAM … | watch [recursive] | changes | connect | install DIRECTORY | version")
	os.Exit(2)
}
