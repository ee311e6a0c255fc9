// Package tools pins the programs that developers run by hand: buf, the protobuf plugins, the linter and benchstat. It is not
// part of the workspace, and neither build nor test needs it.
package tools
