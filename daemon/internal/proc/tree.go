package proc

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Tree is an exec's processes: all that descend from it, whatever group or session they moved to.
type Tree struct {
	Tag    uint64
	Leader int // the pid that leads the exec's session; 0: none
	Except int // a pid that is never a member (a session's shell, once its command has ended); 0: none
	Main   *Process
	Spare  map[int]uint64 // pid → start time of what was there before and shares the tag
}

const (
	// killBound is how long Kill goes on when processes do not vanish (a fork bomb, a hung file system).
	killBound = 10 * time.Second
	// rescanFirst and rescanMost space the scans that wait for the dying: quick for the usual case, cheap for the rest.
	rescanFirst = time.Millisecond
	rescanMost  = 50 * time.Millisecond
)

// Signal sends to every process of the tree and says to how many. The exec's own group gets it at one instant, so
// that a shell cannot run its next line because only its child was told.
func (t *Tree) Signal(sig syscall.Signal) int {
	grouped, count := 0, 0
	if t.Main != nil && !t.Main.Ended() {
		before, _ := t.scan() // those that die of it at once are not there to be counted afterwards
		if t.Main.SignalGroup(sig) {
			grouped = t.Main.PID
			for _, m := range before {
				if m.group == grouped {
					count++
				}
			}
			count = max(count, 1)
		}
	}
	members, err := t.scan()
	if err != nil || !tagging {
		return count
	}
	for _, m := range members {
		if (grouped == 0 || m.group != grouped) && t.send(m, sig) {
			count++
		}
	}
	return count
}

// StopDeaf stops those members of a process group that ignore a signal, which is about to be sent to all.
func (t *Tree) StopDeaf(sig syscall.Signal, group int) {
	members, err := t.scan()
	if err != nil || !tagging {
		return
	}
	for _, m := range members {
		if m.group == group && ignores(m.pid, sig) {
			t.send(m, syscall.SIGSTOP)
		}
	}
}

// Alive says whether any process of the tree lives.
func (t *Tree) Alive() bool {
	members, err := t.scan()
	if err != nil || !tagging {
		return t.Main != nil && !t.Main.Ended()
	}
	return len(members) > 0
}

// Kill ends every process of the tree: it stops all it finds until it finds no new one, so that none can fork
// away, then kills, and looks again. It says how many are left, which is none but for what the kernel cannot end.
func (t *Tree) Kill() int {
	if t.Main != nil {
		t.Main.SignalGroup(syscall.SIGKILL)
	}
	bound := time.Now().Add(killBound)
	wait := rescanFirst
	for {
		members := t.freeze(bound)
		if len(members) == 0 {
			return 0
		}
		for _, m := range members {
			t.send(m, syscall.SIGKILL)
		}
		if time.Now().After(bound) {
			return len(members)
		}
		time.Sleep(wait)
		wait = min(2*wait, rescanMost)
	}
}

func (t *Tree) freeze(bound time.Time) []member {
	stopped := map[int]uint64{}
	for {
		members, err := t.scan()
		if err != nil || !tagging {
			return nil
		}
		fresh := false
		for _, m := range members {
			if start, ok := stopped[m.pid]; !ok || start != m.start {
				stopped[m.pid] = m.start
				fresh = true
				if len(members) > 1 {
					t.send(m, syscall.SIGSTOP)
				}
			}
		}
		if !fresh || len(members) == 1 || time.Now().After(bound) {
			return members
		}
	}
}

// send signals exactly the process that a scan saw: by a pidfd taken before its identity is checked again.
func (t *Tree) send(m member, sig syscall.Signal) bool {
	if t.Main != nil && m.pid == t.Main.PID {
		return t.Main.Signal(sig)
	}
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(m.pid), 0, 0)
	if errno == syscall.ESRCH {
		return false
	}
	if errno != 0 { // an old kernel or a filter: the window for a reused pid is microseconds
		return syscall.Kill(m.pid, sig) == nil
	}
	defer syscall.Close(int(fd))
	if now, alive := statOf(m.pid); !alive || now.start != m.start {
		return false
	}
	_, _, errno = syscall.Syscall6(sysPidfdSendSignal, fd, uintptr(sig), 0, 0, 0, 0)
	return errno == 0
}

// KillAll ends everything the daemon ever started, and as PID 1 everything in its namespace. Bounded by grace plus
// a few seconds.
func KillAll(grace time.Duration) {
	everything := func(sig syscall.Signal) bool {
		if os.Getpid() == 1 {
			return syscall.Kill(-1, sig) != syscall.ESRCH && hasChildren()
		}
		found := false
		children.mu.Lock()
		running := make([]*Process, 0, len(children.known))
		for _, p := range children.known {
			running = append(running, p)
		}
		children.mu.Unlock()
		for _, p := range running {
			found = p.SignalGroup(sig) || found
		}
		pids, _ := processIDs()
		for _, pid := range pids {
			if tag, known := tagOf(pid); known && tag&tagMask == tagPrefix && pid != os.Getpid() {
				if m, alive := statOf(pid); alive {
					found = true
					(&Tree{}).send(m, sig)
				}
			}
		}
		return found
	}
	if grace > 0 && everything(syscall.SIGTERM) {
		everything(syscall.SIGCONT)
		for end := time.Now().Add(grace); time.Now().Before(end) && everything(0); {
			time.Sleep(5 * time.Millisecond)
		}
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && everything(syscall.SIGKILL); {
		time.Sleep(2 * time.Millisecond)
	}
}

func hasChildren() bool {
	const pAll, wExited, wNowait, wNohang = 0, 4, 0x01000000, 1
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, 0, wExited|wNowait|wNohang, 0, 0)
	return errno != syscall.ECHILD
}

// Snapshot lists the tree's processes as a later tree's Spare.
func (t *Tree) Snapshot() map[int]uint64 {
	members, _ := t.scan()
	spare := make(map[int]uint64, len(members))
	for _, m := range members {
		spare[m.pid] = m.start
	}
	return spare
}

// CPUTime is what a process and its waited-for children have used, in the kernel's ticks of 10 ms.
func CPUTime(pid int) (user, system time.Duration) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(f) < 15 {
		return 0, 0
	}
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(string(f[i]), 10, 64)
		return time.Duration(n) * (time.Second / 100)
	}
	return ticks(11) + ticks(13), ticks(12) + ticks(14)
}
