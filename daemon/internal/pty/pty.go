// Package pty makes pseudo-terminals from /dev/ptmx with nothing but system calls: the images have no libc to ask.
package pty

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"unsafe"

	"sandman.dev/daemon/internal/proc"
)

// Open returns a new terminal's two sides; the master does not block. The slave belongs to who will use it.
func Open(rows, cols uint16, who *proc.Identity) (master, slave int, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("this sandbox has no terminals: /dev/ptmx: %w", err)
	}
	fail := func(step string, err error) (int, int, error) {
		syscall.Close(master)
		return -1, -1, fmt.Errorf("no terminal could be made: %s: %w", step, err)
	}
	var unlock int32
	if err := ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
		return fail("unlock", err)
	}
	const tiocgptpeer = 0x5441
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), tiocgptpeer, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	slave = int(fd)
	if errno != 0 { // before Linux 4.13, and in some sandboxes: by name
		var number uint32
		if err := ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)); err != nil {
			return fail("number", err)
		}
		name := "/dev/pts/" + strconv.Itoa(int(number))
		if slave, err = syscall.Open(name, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0); err != nil {
			return fail(name, err)
		}
	}
	if who != nil {
		if err := syscall.Fchown(slave, int(who.UID), -1); err != nil && !errors.Is(err, syscall.EPERM) {
			syscall.Close(slave)
			return fail("owner", err)
		}
	}
	if err := Resize(master, rows, cols); err != nil {
		syscall.Close(slave)
		return fail("size", err)
	}
	return master, slave, nil
}

// Resize sets a terminal's size; its foreground group is told by SIGWINCH.
func Resize(fd int, rows, cols uint16) error {
	size := [4]uint16{rows, cols}
	return ioctl(fd, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
