//go:build !noengine

package engine

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// runLocal calls the library's entry point, which is `clickhouse local`, and returns when that ends.
func runLocal(library string, args []string) error {
	h, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("load %s: %w", library, err)
	}
	var cmdline func(argc int32, argv unsafe.Pointer) unsafe.Pointer
	var resultError func(unsafe.Pointer) string
	purego.RegisterLibFunc(&cmdline, h, "chdb_query_cmdline")
	purego.RegisterLibFunc(&resultError, h, "chdb_result_error")
	argv := make([]*byte, 0, len(args)+1)
	for _, a := range args {
		argv = append(argv, &append([]byte(a), 0)[0])
	}
	argv = append(argv, nil)
	r := cmdline(int32(len(args)), unsafe.Pointer(&argv[0]))
	if r == nil {
		return errors.New("the library gave no result")
	}
	if msg := resultError(r); msg != "" {
		return errors.New(msg)
	}
	return nil
}
