package proc

import (
	"runtime"
	"syscall"
	"unsafe"
)

// beforeFork gives the next child what it should inherit; the returned function takes it back.
// The caller holds starting, so no other child is forked in between.
func beforeFork() func() {
	if oomFile != nil {
		_, _ = oomFile.WriteAt([]byte(preferred), 0)
	}
	locked := dirtyMask
	if locked { // the runtime hands the forking thread's own mask to the child
		runtime.LockOSThread()
		const sigSetmask = 2
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&cleanedSet[0])), 0, 8, 0, 0)
	}
	return func() {
		if locked {
			runtime.UnlockOSThread()
		}
		if oomFile != nil {
			_, _ = oomFile.WriteAt(oomOwn, 0)
		}
	}
}

// sigaction is the kernel's, as on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// DefaultSignals undoes what the daemon's parent ignored (nohup, a Python that ignores SIGPIPE): ignored signals
// are inherited through exec, and a command would never learn that its pipe broke.
func DefaultSignals() {
	const sigIgn = 1
	for sig := 1; sig <= 64; sig++ {
		if sig == int(syscall.SIGKILL) || sig == int(syscall.SIGSTOP) {
			continue
		}
		var action sigaction
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		if errno != 0 || action.handler != sigIgn {
			continue
		}
		var fallback sigaction
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&fallback)), 0, 8, 0, 0)
	}
}
