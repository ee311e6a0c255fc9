package terminal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// open makes a terminal: its master, which does not block the thread, and the end that programs have.
func open() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var number, fd int
	var cause error
	err = control(master, func(m int) {
		if cause = unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); cause != nil {
			return
		}
		if number, cause = unix.IoctlGetInt(m, unix.TIOCGPTN); cause != nil {
			return
		}
		// By the descriptor and not by a path, which may lead elsewhere.
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if fd = int(r); errno != 0 {
			fd, cause = unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		}
	})
	if err = errors.Join(err, cause); err != nil {
		master.Close()
		return nil, nil, err
	}
	return master, os.NewFile(uintptr(fd), "terminal"), nil //nolint:gosec // a descriptor is not negative
}

// prepare makes erasing take whole characters.
func prepare(master *os.File) error {
	t, err := termios(master)
	if err != nil {
		return err
	}
	t.Iflag |= unix.IUTF8
	var cause error
	err = control(master, func(fd int) { cause = unix.IoctlSetTermios(fd, unix.TCSETS, t) })
	return errors.Join(err, cause)
}

// termios are the settings of the terminal, which its programs may change.
func termios(master *os.File) (t *unix.Termios, err error) {
	var cause error
	err = control(master, func(fd int) { t, cause = unix.IoctlGetTermios(fd, unix.TCGETS) })
	return t, errors.Join(err, cause)
}

// flushInput throws away what was typed and not read: for the master that is what it has put out.
func flushInput(master *os.File) error {
	var cause error
	err := control(master, func(fd int) { cause = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCOFLUSH) })
	return errors.Join(err, cause)
}

// nextSize reads a size.
func nextSize(r io.Reader) (*unix.Winsize, error) {
	var b [SizeBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	return &unix.Winsize{Col: binary.BigEndian.Uint16(b[:]), Row: binary.BigEndian.Uint16(b[2:])}, nil
}

func resize(master *os.File, size *unix.Winsize) error {
	var cause error
	err := control(master, func(fd int) { cause = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size) })
	return errors.Join(err, cause)
}

// control lends the descriptor without making it block.
func control(f *os.File, use func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { use(int(fd)) }) //nolint:gosec // a descriptor
}
