package rig

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Disk is a file system of its own for a part of the state, so that it can be full while the host's is not.
type Disk struct {
	Name string
	Dir  string

	mu    sync.Mutex
	bytes uint64
}

func mountDisk(name, dir string, bytes uint64) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d := &Disk{Name: name, Dir: dir, bytes: bytes}
	if err := unix.Mount("chaos-"+name, dir, "tmpfs", 0, size(bytes)); err != nil {
		return nil, fmt.Errorf("mount a disk for the %s: %w", name, err)
	}
	return d, nil
}

func size(bytes uint64) string { return fmt.Sprintf("size=%d,mode=0700", bytes) }

// Fill leaves no free block: whoever writes gets ENOSPC. Nothing that is stored is touched.
func (d *Disk) Fill() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Others write meanwhile: a size below what is used is refused.
	for spare := uint64(0); ; spare += 64 << 10 {
		var st unix.Statfs_t
		if err := unix.Statfs(d.Dir, &st); err != nil {
			return fmt.Errorf("fill the disk of the %s: %w", d.Name, err)
		}
		used := (st.Blocks - st.Bfree) * uint64(st.Bsize) //nolint:gosec // a block has a size
		err := unix.Mount("", d.Dir, "", unix.MS_REMOUNT, size(used+spare))
		if err == nil {
			return nil
		}
		if spare > 64<<20 {
			return fmt.Errorf("fill the disk of the %s: %w", d.Name, err)
		}
	}
}

// Free gives it its size again.
func (d *Disk) Free() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := unix.Mount("", d.Dir, "", unix.MS_REMOUNT, size(d.bytes)); err != nil {
		return fmt.Errorf("free the disk of the %s: %w", d.Name, err)
	}
	return nil
}

func (d *Disk) unmount() error { return unix.Unmount(d.Dir, unix.MNT_DETACH) }
