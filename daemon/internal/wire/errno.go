package wire

import (
	"strconv"
	"syscall"
)

var errnoNames = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.EIO: "EIO", syscall.E2BIG: "E2BIG", syscall.ENOEXEC: "ENOEXEC",
	syscall.EAGAIN: "EAGAIN", syscall.ENOMEM: "ENOMEM", syscall.EACCES: "EACCES", syscall.ENOTDIR: "ENOTDIR",
	syscall.EISDIR: "EISDIR", syscall.EINVAL: "EINVAL", syscall.ENFILE: "ENFILE", syscall.EMFILE: "EMFILE",
	syscall.ETXTBSY: "ETXTBSY", syscall.ENOSPC: "ENOSPC", syscall.EROFS: "EROFS", syscall.ENAMETOOLONG: "ENAMETOOLONG",
	syscall.ELOOP: "ELOOP", syscall.ESTALE: "ESTALE",
}

// errnoName is the symbol that errno(3) has, or the number.
func errnoName(e syscall.Errno) string {
	if name, ok := errnoNames[e]; ok {
		return name
	}
	return strconv.Itoa(int(e))
}
