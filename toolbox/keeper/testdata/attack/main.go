// Command attack is hostile code for tests, to be run inside a sandbox.
package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "swap":
		swap(os.Args[2])
	case "leave":
		leave()
	case "stay":
		time.Sleep(time.Hour)
	}
}

// swap puts a link to the target in the place of directory d, and d back, for ever.
func swap(target string) {
	_ = os.Mkdir("d", 0o777)
	_ = os.WriteFile("d/f", []byte("inside"), 0o666)
	_ = os.Symlink(target, "l")
	fmt.Println("ready")
	for i := 0; ; i++ {
		// A name of its own: others may have made a directory d meanwhile, and then this one stays aside.
		aside := fmt.Sprint("aside-", i)
		_ = syscall.Rename("d", aside)
		_ = syscall.Rename("l", "d")
		_ = syscall.Rename("d", "l")
		_ = syscall.Rename(aside, "d")
	}
}

// leave tries to lose the supplementary groups by which its tree is found, before and behind every step of becoming the root of a
// user namespace of its own, and stays as an orphan in a session of its own.
func leave() {
	try := func() { _ = syscall.Setgroups(nil); _ = syscall.Setgroups([]int{0}) }
	try()
	_ = syscall.Unshare(syscall.CLONE_NEWUSER)
	try()
	_ = os.WriteFile("/proc/self/uid_map", fmt.Appendf(nil, "0 %d 1", 1000), 0)
	try()
	_ = os.WriteFile("/proc/self/gid_map", fmt.Appendf(nil, "0 %d 1", 1000), 0)
	try()
	_ = os.WriteFile("/proc/self/setgroups", []byte("deny"), 0)
	_ = os.WriteFile("/proc/self/gid_map", fmt.Appendf(nil, "0 %d 1", 1000), 0)
	try()
	_ = syscall.Setgid(0)
	_ = syscall.Setuid(0)
	try()
	for range 3 {
		_, err := syscall.ForkExec(os.Args[0], []string{os.Args[0], "stay"}, &syscall.ProcAttr{
			Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID},
		})
		if err != nil {
			_, _ = syscall.ForkExec(os.Args[0], []string{os.Args[0], "stay"}, &syscall.ProcAttr{
				Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
			})
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
