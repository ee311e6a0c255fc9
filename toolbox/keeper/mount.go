package keeper

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// isolate keeps the mounts of this process from spreading. The process must be in a mount namespace of its own already.
func isolate() error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("read mount namespace: %w", err)
	}
	parent, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err == nil && own == parent {
		return errors.New("a keeper must be started in a mount namespace of its own")
	}
	// Slave, not private: what the host unmounts later goes here too, so that a keeper keeps no file system of others busy.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// deskBytes bounds the desk: runsc's state and logs.
const deskBytes = 8 << 20

// mountDesk covers one of the usual empty directories with a small file system of our own and returns its path, which is
// short, since sockets come to lie in it. It is none that leads to one of the paths.
func mountDesk(paths ...string) (string, error) {
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt", "/home"} {
		leads := slices.ContainsFunc(paths, func(p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") })
		info, err := os.Lstat(dir)
		if leads || err != nil || !info.IsDir() {
			continue
		}
		options := fmt.Sprintf("mode=0755,size=%d", deskBytes)
		if err := unix.Mount("sandtrail", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return "", fmt.Errorf("mount desk: %w", err)
		}
		return dir, nil
	}
	return "", errors.New("no directory to mount the desk on")
}

// bindReadOnly shows from at to, without the mounts below it.
func bindReadOnly(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", to, err)
	}
	flags, err := lockedFlags(to)
	if err != nil {
		return err
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|flags, ""); err != nil {
		return fmt.Errorf("bind %s read only: %w", to, err)
	}
	return nil
}

// makePoints makes what the guest's mounts need to lie on: a directory dir and a file, each with its parents, which look as
// they do in the image. The image itself is shared and stays as it is.
func makePoints(image, points, dir, file string) error {
	for _, target := range []string{dir, file} {
		at := "/"
		parts := append([]string{""}, strings.Split(strings.Trim(path.Clean(target), "/"), "/")...)
		for i, part := range parts {
			at = path.Join(at, part)
			if target == file && i == len(parts)-1 {
				if err := os.WriteFile(points+at, nil, 0o644); err != nil {
					return fmt.Errorf("make mount point: %w", err)
				}
				continue
			}
			if err := os.Mkdir(points+at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("make mount point: %w", err)
			}
			var st unix.Stat_t
			err := unix.Lstat(image+at, &st)
			if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				err = errors.Join(unix.Chmod(points+at, st.Mode&0o7777), unix.Lchown(points+at, int(st.Uid), int(st.Gid)))
			}
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
				return fmt.Errorf("make mount point: %w", err)
			}
		}
	}
	return nil
}

// mountLayers shows the upper directory over the lower one, read only.
func mountLayers(at, upper, lower string) error {
	options := "lowerdir=" + upper + ":" + lower
	if err := unix.Mount("sandtrail", at, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount image: %w", err)
	}
	return nil
}

// loopTries bounds the race for a free loop device with other keepers.
const loopTries = 64

// attachLoop binds an image to a free loop device, which frees itself once it is unmounted and closed.
func attachLoop(image string) (*os.File, error) {
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open loop control: %w", err)
	}
	defer control.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find free loop device: %w", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			// Where no udev runs the node of a new device is not made.
			_ = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))
			dev, err = os.OpenFile(path, os.O_RDWR, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("open loop device: %w", err)
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("set up loop device: %w", err)
		}
	}
	return nil, errors.New("no free loop device")
}

// mountWorkspace mounts the ext4 image on dir. Set-uid files and devices in it mean nothing on the host: the guest's root
// could make them. It returns the device.
//
// A write that the disk below does not take stops the file system: without data_err a file would lack what its writer was told is written,
// and nobody would ever know.
func mountWorkspace(image, dir string) (string, error) {
	dev, err := attachLoop(image)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	const safe = "errors=remount-ro"
	err = unix.Mount(dev.Name(), dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, safe+",data_err=abort")
	if errors.Is(err, unix.EINVAL) {
		// A small workspace has no journal that could be ended.
		err = unix.Mount(dev.Name(), dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, safe)
	}
	if err != nil {
		return "", fmt.Errorf("mount workspace: %w", err)
	}
	return dev.Name(), nil
}

// unmount waits up to a second for a file system to be free and detaches it otherwise; not mounted is fine.
func unmount(dir string) error {
	deadline := time.Now().Add(time.Second)
	for {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY) && time.Now().Before(deadline):
			time.Sleep(5 * time.Millisecond)
		default:
			return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}
