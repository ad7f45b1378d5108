// Package pid1 makes the process fit for its place: first in a sandbox, one of thousands on a machine, and out of
// reach of the commands that it runs.
package pid1

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"sandman.dev/daemon/internal/proc"
)

const (
	// maxThreads that run Go code at once: a daemon moves bytes, and must not compete with the commands for cores.
	maxThreads = 4
	// gcPercent trades a little CPU for memory: live data is small, so collections are cheap.
	gcPercent = 50
	// memoryLimit is where the collector works harder; buffers in flight of many streams stay below it.
	memoryLimit = 96 << 20
)

// Settle is called once, before anything is started or listened to.
func Settle() {
	// A fixed number also stops the runtime from re-reading the CPU limit every second: an idle daemon sleeps.
	runtime.GOMAXPROCS(max(2, min(runtime.NumCPU(), maxThreads)))
	// No collection is forced at the start: its bookkeeping would cost an idle daemon more than it gives back.
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	proc.DefaultSignals()
	dropSignals()
	syscall.Umask(0o022)
	proc.Prepare()
	proc.OOMKills() // opens the counter while /proc/self can be read
	const prSetDumpable = 4
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	closeInherited()
}

// dropSignals catches what would end the process and drops it; ignoring would be inherited by the commands. A log that
// nobody reads and a file size limit must not end the daemon: the write's error is enough. The kernel keeps signals from an
// init that has no handler for them, but the runtime has one for each, and most of them end the program: so the first
// process drops whatever its sandbox sends. TERM and INT are what asks it to end.
func dropSignals() {
	dropped := []os.Signal{syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGXFSZ}
	if os.Getpid() == 1 {
		for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
			switch sig {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD, syscall.SIGURG: // the last is the runtime's own
			default:
				dropped = append(dropped, sig)
			}
		}
	}
	signal.Notify(make(chan os.Signal, 1), dropped...)
}

const lastSignal = 64

// closeInherited marks every descriptor but the standard ones close-on-exec: what the daemon was given is not the
// commands'.
func closeInherited() {
	const closeRangeCloexec = 4
	if _, _, errno := syscall.RawSyscall(sysCloseRange, 3, ^uintptr(0)>>32, closeRangeCloexec); errno == 0 {
		return
	}
	for fd := 3; fd < 1024; fd++ {
		_, _, _ = syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, syscall.FD_CLOEXEC)
	}
}
