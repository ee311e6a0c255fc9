// Package skew gives a program a wall clock of its own, which jumps when it is told to while the machine's clock and the program's monotonic one
// go on. A time namespace does not cover the wall clock, and Go asks the kernel's page of functions (the vDSO) past any preloaded library:
// so that page of the one process gets another clock_gettime before the program's first instruction.
package skew

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Clock is the wall clock of a program that it has started, and of the next one once that has ended. The zero Clock is right.
type Clock struct {
	mu  sync.Mutex
	off int64
	// memory of the program that runs, or ran: another one with its number is never reached by it. At cell it keeps how many seconds it is off.
	memory *os.File
	cell   int64
}

// Set lets the clock be off by this much from now on, in whole seconds; 0 sets it right. A program that has ended is no error: the next one
// has the clock that was set.
func (c *Clock) Set(off time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = int64(off / time.Second)
	if c.memory == nil {
		return nil
	}
	_, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(c.off)), c.cell) //nolint:gosec // two's complement, as it is added
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Start starts a program with this clock. The program must be for amd64 and ask for its wall clock as Go does.
func (c *Clock) Start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := find()
	if err != nil {
		return fmt.Errorf("give a program a clock: %w", err)
	}
	// Traced, it stops before its first instruction; only the thread that has started it may let it go on.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := c.replace(cmd.Process.Pid, f); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("give a program a clock: %w", err)
	}
	return nil
}

// replace puts the function of this clock into the stopped program and lets it go on.
func (c *Clock) replace(pid int, f function) error {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	if !status.Stopped() {
		return fmt.Errorf("it did not stop at its start: status %#x", int(status))
	}
	base, _, err := page(pid)
	if err != nil {
		return err
	}
	if c.memory != nil {
		_ = c.memory.Close() // of a program that has ended
	}
	// Past the page's protection, as debuggers do; the page becomes this process's own.
	if c.memory, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0); err != nil {
		return err
	}
	code := append(bytes.Clone(clockGettime), binary.LittleEndian.AppendUint64(nil, uint64(c.off))...) //nolint:gosec // as in Set
	if _, err := c.memory.WriteAt(code, base+f.offset); err != nil {
		return err
	}
	c.cell = base + f.offset + int64(len(clockGettime))
	return syscall.PtraceDetach(pid)
}

// clockGettime is int clock_gettime(clockid_t edi, struct timespec *rsi) for amd64: it asks the kernel, and adds the seconds of the cell
// behind it to CLOCK_REALTIME. The cell is aligned, so that it is read as a whole.
var clockGettime = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov $228, %eax
	0x0f, 0x05, // syscall
	0x85, 0xff, // test %edi, %edi
	0x75, 0x0e, // jne end
	0x85, 0xc0, // test %eax, %eax
	0x75, 0x0a, // jne end
	0x48, 0x8b, 0x15, 0x0a, 0x00, 0x00, 0x00, // mov cell(%rip), %rdx
	0x48, 0x01, 0x16, // add %rdx, (%rsi)
	0xc3,                               // end: ret
	0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, // cell stands 32 bytes behind the beginning
}

// function is where clock_gettime stands in the page.
type function struct{ offset int64 }

// find looks at this process's own page: a kernel has one for all.
var find = sync.OnceValues(func() (function, error) {
	if runtime.GOARCH != "amd64" {
		return function{}, errors.New("only on amd64")
	}
	from, to, err := page(os.Getpid())
	if err != nil {
		return function{}, err
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return function{}, err
	}
	defer mem.Close()
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, from); err != nil {
		return function{}, err
	}
	parsed, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return function{}, err
	}
	symbols, err := parsed.DynamicSymbols()
	if err != nil {
		return function{}, err
	}
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		size := uint64(len(clockGettime) + 8)
		if s.Size < size || s.Value%8 != 0 {
			return function{}, fmt.Errorf("clock_gettime of this kernel has %d bytes at %#x: too few for another, or not aligned", s.Size, s.Value)
		}
		return function{offset: int64(s.Value)}, nil //nolint:gosec // an offset in a page
	}
	return function{}, errors.New("this kernel gives programs no clock_gettime")
})

// page is where the kernel's page of functions lies in a process.
func page(pid int) (from, to int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		first, rest, _ := strings.Cut(line, "-")
		last, _, _ := strings.Cut(rest, " ")
		if from, err = strconv.ParseInt(first, 16, 64); err == nil {
			to, err = strconv.ParseInt(last, 16, 64)
		}
		return from, to, err
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}
