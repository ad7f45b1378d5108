package files

// The *at family of system calls, which the standard library keeps to itself. Everything here works on a
// directory descriptor and a name, because a path that was resolved twice can mean two files.
//
// Each call retries EINTR: the Go runtime preempts with signals, and FUSE and NFS do return it.

import (
	"errors"
	"syscall"
	"unsafe"
)

const (
	atFDCWD           = -0x64
	atSymlinkNofollow = 0x100
	atRemoveDir       = 0x200
	atSymlinkFollow   = 0x400
	oPath             = 0x200000
	oTmpfile          = 0x400000 | syscall.O_DIRECTORY
	renameNoReplace   = 1
	atEAccess         = 0x200
	writeOK           = 2
	sysOpenat2        = 437 // the same on every architecture, as all calls since Linux 5
	sysFaccessat2     = 439
	resolveBeneath    = 0x08
	resolveNoMagic    = 0x02
	utimeOmit         = (1 << 30) - 2
)

// retry runs one system call until it was not interrupted.
func retry(call func() syscall.Errno) error {
	for {
		switch errno := call(); errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return errno
		}
	}
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := syscall.Openat(dir, name, flags|syscall.O_CLOEXEC, mode)
		if !errors.Is(err, syscall.EINTR) {
			return fd, err
		}
	}
}

// openBeneath opens name under dir and refuses (EXDEV) whatever would leave dir on the way, by ".." or by
// links, atomically. ENOSYS on kernels before 5.6 and under old seccomp filters.
func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	how := struct{ flags, mode, resolve uint64 }{
		uint64(flags | syscall.O_CLOEXEC), uint64(mode), resolveBeneath | resolveNoMagic,
	}
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return -1, err
	}
	var fd uintptr
	again := 0
	for {
		err = retry(func() (errno syscall.Errno) {
			fd, _, errno = syscall.Syscall6(sysOpenat2, uintptr(dir), uintptr(unsafe.Pointer(text)),
				uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
			return errno
		})
		// EAGAIN: something was renamed meanwhile and the kernel could not tell whether we left.
		if again++; !errors.Is(err, syscall.EAGAIN) || again > 100 {
			break
		}
	}
	if err != nil {
		return -1, err
	}
	return int(fd), nil
}

func statat(dir int, name string, flags int) (syscall.Stat_t, error) {
	var st syscall.Stat_t
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return st, err
	}
	err = retry(func() syscall.Errno {
		_, _, errno := syscall.Syscall6(sysFstatat, uintptr(dir), uintptr(unsafe.Pointer(text)),
			uintptr(unsafe.Pointer(&st)), uintptr(flags), 0, 0)
		return errno
	})
	return st, err
}

// mayWrite asks whether writing would be allowed, without opening: on an overlay, opening a file of the image
// for writing copies all of it first. It answers for the effective ids of the current thread.
func mayWrite(dir int, name string) error {
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return retry(func() syscall.Errno {
		_, _, errno := syscall.Syscall6(sysFaccessat2, uintptr(dir), uintptr(unsafe.Pointer(text)), writeOK,
			atEAccess|atSymlinkNofollow, 0, 0)
		return errno
	})
}

func fstat(fd int) (syscall.Stat_t, error) {
	var st syscall.Stat_t
	err := retryErr(func() error { return syscall.Fstat(fd, &st) })
	return st, err
}

func retryErr(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// readlinkat returns the whole target, however long the kernel lets it be.
func readlinkat(dir int, name string) (string, error) {
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	buffer := make([]byte, 256)
	for {
		var n uintptr
		err := retry(func() (errno syscall.Errno) {
			n, _, errno = syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(text)),
				uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0)
			return errno
		})
		if err != nil {
			return "", err
		}
		if int(n) < len(buffer) {
			return string(buffer[:n]), nil
		}
		buffer = make([]byte, 2*len(buffer))
	}
}

func mkdirat(dir int, name string, mode uint32) error {
	return retryErr(func() error { return syscall.Mkdirat(dir, name, mode) })
}

func unlinkat(dir int, name string, flags int) error {
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return retry(func() syscall.Errno {
		_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(text)), uintptr(flags))
		return errno
	})
}

func renameat2(fromDir int, from string, toDir int, to string, flags int) error {
	return twoNames(from, to, func(from, to *byte) syscall.Errno {
		_, _, errno := syscall.Syscall6(sysRenameat2, uintptr(fromDir), uintptr(unsafe.Pointer(from)),
			uintptr(toDir), uintptr(unsafe.Pointer(to)), uintptr(flags), 0)
		return errno
	})
}

func linkat(fromDir int, from string, toDir int, to string, flags int) error {
	return twoNames(from, to, func(from, to *byte) syscall.Errno {
		_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(fromDir), uintptr(unsafe.Pointer(from)),
			uintptr(toDir), uintptr(unsafe.Pointer(to)), uintptr(flags), 0)
		return errno
	})
}

func symlinkat(target string, dir int, name string) error {
	return twoNames(target, name, func(target, name *byte) syscall.Errno {
		_, _, errno := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(target)), uintptr(dir), uintptr(unsafe.Pointer(name)))
		return errno
	})
}

func twoNames(a, b string, call func(a, b *byte) syscall.Errno) error {
	first, err := syscall.BytePtrFromString(a)
	if err != nil {
		return err
	}
	second, err := syscall.BytePtrFromString(b)
	if err != nil {
		return err
	}
	return retry(func() syscall.Errno { return call(first, second) })
}

func mkfifoat(dir int, name string, mode uint32) error {
	return retryErr(func() error { return syscall.Mknodat(dir, name, syscall.S_IFIFO|mode, 0) })
}

// setTimes sets the modification time of an entry itself, never of what it points to.
func setTimes(dir int, name string, modified syscall.Timespec) error {
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, modified}
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return retry(func() syscall.Errno {
		_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(text)),
			uintptr(unsafe.Pointer(&times)), atSymlinkNofollow, 0, 0)
		return errno
	})
}

// setTimesOf is setTimes on an open descriptor.
func setTimesOf(fd int, modified syscall.Timespec) error {
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, modified}
	return retry(func() syscall.Errno {
		_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
		return errno
	})
}
