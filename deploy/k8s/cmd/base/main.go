// Command base writes the files below deploy/k8s that are made from code: the rules of NATS and the kustomize base.
package main

import (
	"fmt"
	"os"

	"github.com/sandtrail/sandtrail/deploy/k8s/render"
)

func main() {
	dir := "deploy/k8s"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := render.Write(dir); err != nil {
		fmt.Fprintln(os.Stderr, "base:", err)
		os.Exit(1)
	}
}
