package proc

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// rlimitNPROC has this number on every architecture that the daemon is built for.
const rlimitNPROC = 6

// spareThreads are made while there is room: the runtime keeps a thread for ever once it has it, and ends the whole
// program when it needs one that the kernel refuses. Busy daemons have about ten.
const spareThreads = 12

// perCommand is the bound on processes and threads of the whole sandbox that each command gets; zero: none.
var perCommand atomic.Uint64

// LimitProcesses bounds what commands may fork to so many processes and threads in the sandbox. The sandbox's own
// limit lies a little higher: a program that forks until nothing is left must leave the daemon the threads it needs.
// The kernel counts per user and user namespace, so this means something only where the sandbox has its own.
func LimitProcesses(n int) {
	if n <= 0 {
		return
	}
	perCommand.Store(uint64(n))
	var made, release sync.WaitGroup
	release.Add(1)
	for range spareThreads {
		made.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			release.Wait()
		}()
	}
	made.Wait()
	release.Done()
}

// lowerProcesses is for the moment of a fork, under the lock that orders them: a command must be born with its limit,
// because one that gets it a little later has forked by then. What it answers takes the daemon's own limit up again;
// the hard limit stays, so that this is allowed, and limitProcesses lowers the command's.
func lowerProcesses() func() {
	n := perCommand.Load()
	if n == 0 {
		return func() {}
	}
	var own syscall.Rlimit
	if prlimitProcesses(0, nil, &own) != nil || own.Max < n {
		return func() {}
	}
	lowered := syscall.Rlimit{Cur: n, Max: own.Max}
	_ = prlimitProcesses(0, &lowered, nil)
	return func() { _ = prlimitProcesses(0, &own, nil) }
}

// limitProcesses takes a command that has just started the right to raise its limit.
func limitProcesses(pid int) {
	if n := perCommand.Load(); n > 0 {
		limit := syscall.Rlimit{Cur: n, Max: n}
		_ = prlimitProcesses(pid, &limit, nil)
	}
}

func prlimitProcesses(pid int, set, get *syscall.Rlimit) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), rlimitNPROC,
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
