package proc

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// rlimitNPROC has this number on every architecture that the daemon is built for.
const rlimitNPROC = 6

// perCommand is the bound on processes and threads of the whole sandbox that each command gets; zero: none.
var perCommand atomic.Uint64

// LimitProcesses bounds what commands may fork to so many processes and threads in the sandbox. The sandbox's own
// limit lies a little higher: a program that forks until nothing is left must leave the daemon the threads it needs,
// because the runtime ends a program that cannot start one. The kernel counts per user and user namespace, so this
// means something only where the sandbox has its own.
func LimitProcesses(n int) { perCommand.Store(uint64(max(n, 0))) }

// limitProcesses is applied to a command that has just started: set on the daemon during the fork, it would bind the
// daemon's own threads meanwhile.
func limitProcesses(pid int) {
	if n := perCommand.Load(); n > 0 {
		limit := syscall.Rlimit{Cur: n, Max: n}
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), rlimitNPROC,
			uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	}
}
