//go:build noengine

package engine

import "errors"

// runLocal is not there in a program that needs no shared library: what loads one is linked against the C library, which an image of one static
// program does not have.
func runLocal(string, []string) error {
	return errors.New("this program was built without the built-in ClickHouse: name a server with --clickhouse")
}
