// Package proc starts processes, learns their ends, and finds and signals all that descends from them.
//
// One goroutine reaps every child of the daemon, which may be PID 1: it looks at who ended without taking the
// status (WNOWAIT), and then either hands the status to the process that was started here or buries an orphan.
// Start and burial exclude each other, so the status of a process that ends before its start returns is never lost.
package proc

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// Process is one started process. Its pid is never signalled after its status was taken.
type Process struct {
	PID int
	Tag uint64

	mu     sync.Mutex
	reaped bool
	killed bool
	onEnd  func(syscall.WaitStatus, syscall.Rusage)
}

// Signal sends to the process itself; false when it has ended.
func (p *Process) Signal(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return false
	}
	if sig == syscall.SIGKILL {
		p.killed = true
	}
	return syscall.Kill(p.PID, sig) == nil
}

// SignalGroup sends to the group that the process leads, at one instant; false when the leader has ended.
func (p *Process) SignalGroup(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return false
	}
	if sig == syscall.SIGKILL {
		p.killed = true
	}
	return syscall.Kill(-p.PID, sig) == nil
}

// MarkKilled notes that we are about to kill the process by other means.
func (p *Process) MarkKilled() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
}

// Killed says whether SIGKILL came from here.
func (p *Process) Killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// Ended says whether the status was taken.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reaped
}

// reaper knows the children that were started here; the rest are orphans.
type reaper struct {
	once   sync.Once
	mu     sync.Mutex
	known  map[int]*Process
	forked chan struct{}
}

var children = reaper{known: map[int]*Process{}, forked: make(chan struct{}, 1)}

func (r *reaper) add(p *Process) {
	r.once.Do(func() { go r.run() })
	r.mu.Lock()
	r.known[p.PID] = p
	r.mu.Unlock()
	select {
	case r.forked <- struct{}{}:
	default:
	}
}

func (r *reaper) run() {
	orphans := make(chan os.Signal, 1)
	if os.Getpid() == 1 { // only an init is given children that it did not fork
		signal.Notify(orphans, syscall.SIGCHLD)
	}
	for {
		pid, err := peekEnded()
		switch err {
		case nil:
			r.collect(pid)
		case syscall.ECHILD:
			select {
			case <-r.forked:
			case <-orphans:
			}
		}
	}
}

// ReapOrphans starts the reaper before anything was started: an init has duties from its first moment.
func ReapOrphans() { children.once.Do(func() { go children.run() }) }

func (r *reaper) collect(pid int) {
	r.mu.Lock()
	p := r.known[pid]
	r.mu.Unlock()
	if p == nil {
		starting.Lock() // a start may be about to register this very pid
		r.mu.Lock()
		p = r.known[pid]
		r.mu.Unlock()
		if p == nil {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		starting.Unlock()
		if p == nil {
			return
		}
	}
	var status syscall.WaitStatus
	var usage syscall.Rusage
	p.mu.Lock()
	got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, &usage)
	// A stop is told, against what was asked for, of a process that made its parent its tracer: it has not ended, and
	// its next stop or end will be told again.
	if (got == pid && (status.Exited() || status.Signaled())) || err == syscall.ECHILD {
		p.reaped = true
	}
	p.mu.Unlock()
	if !p.reaped {
		return
	}
	r.mu.Lock()
	delete(r.known, pid)
	r.mu.Unlock()
	p.onEnd(status, usage)
	runtime.Gosched() // let whom onEnd woke run here and now, before this thread sleeps in the kernel
}

// peekEnded waits for any child's end and leaves its status untaken.
func peekEnded() (int, error) {
	const pAll, wExited, wNowait = 0, 4, 0x01000000
	var info [128]byte
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info[0])), wExited|wNowait, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(*(*int32)(unsafe.Pointer(&info[16]))), nil // siginfo_t: three ints, padding, si_pid
}
