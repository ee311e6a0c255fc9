// Command attack is hostile code for tests, to be run beside an agent as the same user.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	// A program's parent is the agent.
	agent := os.Getppid()
	switch os.Args[1] {
	case "reach":
		reach(agent)
	case "signals":
		signals(agent)
	case "port":
		port(os.Args[2])
	case "leave":
		leave(os.Args[2])
	case "bomb":
		bomb()
	case "stay":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	}
}

// tell prints one attempt: what was tried, and "done" or how it was refused.
func tell(what string, err error) {
	if e, ok := err.(syscall.Errno); ok && e == 0 || err == nil {
		fmt.Printf("%s: done\n", what)
		return
	}
	fmt.Printf("%s: refused, %v\n", what, err)
}

// reach tries to read and to change the agent.
func reach(agent int) {
	proc := "/proc/" + strconv.Itoa(agent)
	tell("attach", syscall.PtraceAttach(agent))
	const seize = 0x4206
	_, _, e := syscall.RawSyscall6(syscall.SYS_PTRACE, seize, uintptr(agent), 0, 0, 0, 0)
	tell("seize", e)
	for _, name := range []string{"mem", "environ", "maps", "auxv"} {
		f, err := os.Open(proc + "/" + name)
		if err == nil {
			_, err = f.Read(make([]byte, 16))
		}
		tell("read "+name, err)
	}
	_, err := os.OpenFile(proc+"/mem", os.O_RDWR, 0)
	tell("write mem", err)
	for fd := range 16 {
		_, err := os.OpenFile(fmt.Sprintf("%s/fd/%d", proc, fd), os.O_RDWR, 0)
		tell(fmt.Sprint("open fd ", fd), err)
	}
	buf := make([]byte, 16)
	local := syscall.Iovec{Base: &buf[0], Len: 16}
	remote := struct{ at, length uintptr }{0x400000, 16}
	const vmRead, vmWrite, pidfdOpen, pidfdGet = 310, 311, 434, 438
	for name, call := range map[string]uintptr{"vm_readv": vmRead, "vm_writev": vmWrite} {
		_, _, e := syscall.RawSyscall6(call, uintptr(agent), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		tell(name, e)
	}
	pidfd, _, _ := syscall.RawSyscall(pidfdOpen, uintptr(agent), 0, 0)
	for fd := range uintptr(16) {
		_, _, e := syscall.RawSyscall(pidfdGet, pidfd, fd, 0)
		tell(fmt.Sprint("take fd ", fd), e)
	}
	tell("oom_score_adj", os.WriteFile(proc+"/oom_score_adj", []byte("1000"), 0))
}

// signals sends every signal but KILL and STOP, as kill does and with a forged origin.
func signals(agent int) {
	for s := syscall.Signal(1); s < 32; s++ {
		if s == syscall.SIGKILL || s == syscall.SIGSTOP {
			continue
		}
		_ = syscall.Kill(agent, s)
		// Only the kernel has faults to tell of; a queued signal with the same number looks like one.
		var info [128]byte
		*(*int32)(unsafe.Pointer(&info[0])) = int32(s)
		*(*int32)(unsafe.Pointer(&info[8])) = -1
		_, _, _ = syscall.RawSyscall(syscall.SYS_RT_SIGQUEUEINFO, uintptr(agent), uintptr(s), uintptr(unsafe.Pointer(&info)))
	}
	fmt.Println("sent")
}

// port tries to listen where the agent does.
func port(number string) {
	const reusePort = 15
	for _, host := range []string{"0.0.0.0", "127.0.0.1", "[::]"} {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
				_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1)
			})
		}}
		_, err := config.Listen(context.Background(), "tcp", host+":"+number)
		tell("listen on "+host, err)
	}
}

// leave has grandchildren without a parent, a session, an environment or, with unmarked, a mark in common with it.
func leave(how string) {
	if how == "unmarked" {
		_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 30, Max: 1 << 30})
	}
	for range 3 {
		_, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", `"$0" stay & exit`, os.Args[0]}, &syscall.ProcAttr{
			Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		tell("fork", err)
	}
	_, err := syscall.ForkExec(os.Args[0], []string{os.Args[0], "stay"}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID},
	})
	fmt.Println("in a namespace of its own:", err)
	fmt.Println("ready")
	signal.Ignore(syscall.SIGTERM)
	time.Sleep(time.Hour)
}

// bomb starts itself again and again, each time in another session. Whoever is refused says so once: the last one that was started may
// not live long enough for it.
func bomb() {
	signal.Ignore(syscall.SIGTERM)
	for told := false; ; {
		_, err := syscall.ForkExec(os.Args[0], []string{os.Args[0], "bomb"}, &syscall.ProcAttr{
			Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		if err == nil {
			continue
		}
		if !told {
			told = true
			_, _ = os.Stdout.WriteString("full\n")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
