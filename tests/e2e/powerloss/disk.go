// Package powerloss cuts the power of servers: what stood in memory only is gone, what was written to the disk is there. It shows
// what the log keeps then at each setting of its flushes.
//
// The disk is a file system of its own on a loop device. Cutting it ends all writing to the device at one moment and drops every
// page that was not written yet, as the kernel does on request (the shutdown of ext4 without a flush of its journal). It is mounted
// again as after a crash, its journal replayed. The device itself keeps what it was given: a drive that lies about flushes is not
// part of this.
package powerloss

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// shutdownRequest is EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32).
	shutdownRequest = 2<<30 | 4<<16 | 'X'<<8 | 125
	// noLogFlush is EXT4_GOING_FLAGS_NOLOGFLUSH: what is in the journal's buffers is lost as well.
	noLogFlush = 2
	diskSize   = 512 << 20
)

// Disk is a file system whose power can be cut.
type Disk struct {
	// Dir is where it is mounted.
	Dir   string
	image string
}

// NewDisk makes an empty one below a directory and mounts it.
func NewDisk(below, name string) (*Disk, error) {
	d := &Disk{Dir: filepath.Join(below, name), image: filepath.Join(below, name+".img")}
	if err := os.Mkdir(d.Dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(d.image, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(diskSize)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	if err := run("mkfs.ext4", "-q", "-F", d.image); err != nil {
		return nil, err
	}
	return d, d.Mount()
}

// Mount mounts it, again after a cut. Its journal is written out every five minutes only: by itself the kernel then saves next to
// nothing of what nobody flushed.
func (d *Disk) Mount() error { return run("mount", "-o", "loop,commit=300", d.image, d.Dir) }

// Revive mounts it again after a cut as it was left then: a copy, for whoever has the old one open or mounted elsewhere keeps that.
func (d *Disk) Revive() error {
	if err := run("umount", "-l", d.Dir); err != nil {
		return err
	}
	old := d.image
	d.image += "'"
	if err := run("cp", "--sparse=always", old, d.image); err != nil {
		return err
	}
	if err := os.Remove(old); err != nil {
		return err
	}
	return d.Mount()
}

// Unmount takes it away; nobody may have a file of it open.
func (d *Disk) Unmount() error { return run("umount", d.Dir) }

// Cut cuts the power. Whoever has files open gets errors from then on.
func (d *Disk) Cut() error {
	f, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdownRequest, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		return fmt.Errorf("shut the file system down: %w", errno)
	}
	return nil
}

// apartVariable marks the process that Apart has started.
const apartVariable = "SANDTRAIL_POWERLOSS_APART"

// Apart runs this program again, with its arguments, where nobody else sees what it mounts: a process with a mount namespace of its
// own keeps the mounts that it was started among, and a disk that is still mounted somewhere does not come back after a cut. It
// returns the exit code, and false in the program that runs apart.
func Apart() (code int, moved bool) {
	if os.Getenv(apartVariable) != "" || os.Geteuid() != 0 {
		return 0, false
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), apartVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return cmd.ProcessState.ExitCode(), true
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
