package proc

import (
	"syscall"
	"unsafe"
)

// become changes the calling thread alone: package syscall would change all of them.
func become(user *Identity) syscall.Errno {
	var groups unsafe.Pointer
	if len(user.Groups) > 0 {
		groups = unsafe.Pointer(&user.Groups[0])
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(user.Groups)), uintptr(groups), 0); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, uintptr(user.GID), uintptr(user.GID), uintptr(user.GID)); e != 0 {
		return e
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(user.UID), uintptr(user.UID), uintptr(user.UID))
	return e
}

// chdir changes the calling thread alone, once it has left the others' working directory (CLONE_FS).
func chdir(dir string) syscall.Errno {
	raw, err := syscall.BytePtrFromString(dir)
	if err != nil {
		return syscall.EINVAL
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(raw)), 0, 0)
	return e
}
