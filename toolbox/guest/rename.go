package guest

import (
	"fmt"
	"syscall"
	"unsafe"
)

// capabilityVersion is that of capget(2) with 64 bits.
const capabilityVersion = 0x20080522

// capKill is what init needs to signal programs.
const capKill = 1 << 5

// rename gives the sandbox its name. The right to do that, which init has where the sandbox was started for nobody yet, goes with it, so
// that it is gone before the first program runs. Where the name cannot be set it goes too.
func rename(to string) error {
	err := syscall.Sethostname([]byte(to))
	header := struct {
		version uint32
		pid     int32
	}{version: capabilityVersion}
	// Effective, permitted, inheritable, each of the low half and then of the high one.
	kept := [6]uint32{capKill, capKill}
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&kept)), 0)
	if errno != 0 {
		return fmt.Errorf("give up rights: %w", errno)
	}
	if err != nil {
		return fmt.Errorf("set the name: %w", err)
	}
	return nil
}
