//go:build tools

// Package gvisor names the commands that this module builds.
package gvisor

import (
	_ "gvisor.dev/gvisor/runsc"
	_ "gvisor.dev/gvisor/shim"
)
