package launch

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lastCapability is the last of a kernel that does not say.
const lastCapability = 40

// Attributes are those that a keeper's process is started with: a session and a mount namespace of its own; without root also
// a user namespace, in which it is the same user but has every capability.
func Attributes(rootless bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS}
	if !rootless {
		return a
	}
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	last := lastCapability
	if b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 0 && n < 64 {
			last = n
		}
	}
	// A program that is not root's loses all others when it is executed.
	for c := range last + 1 {
		a.AmbientCaps = append(a.AmbientCaps, uintptr(c))
	}
	return a
}
