package proc

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Command is what to start, fully resolved: nothing is looked up here.
type Command struct {
	Path  string
	Argv  []string
	Env   []string
	Dir   string
	Files []uintptr // become 0, 1, 2, …
	User  *Identity // nil: the daemon's own
	TTY   bool      // descriptor 0 becomes the controlling terminal
	OnEnd func(syscall.WaitStatus, syscall.Rusage)
}

// starting is held from before a fork until the child is registered; see the package comment.
var starting sync.Mutex

// Tags: an exec's processes are found by the soft limit RLIMIT_RTTIME that they inherit through fork, exec, setsid
// and an emptied environment. It limits only real-time scheduling, and only after the years that these numbers mean.
// Bit 62 and the daemon's own random part keep daemons in one PID namespace apart.
var (
	tagPrefix  = uint64(1)<<62 | randomBits()<<32
	tagCounter atomic.Uint32
	tagging    = probeTagging()
)

const (
	rlimitRTTime = 15
	infinity     = ^uint64(0)
	tagMask      = infinity &^ (1<<32 - 1)
)

// Tagging says whether processes can be tagged; if not, a tree is only its process group.
func Tagging() bool { return tagging && procMounted() }

func procMounted() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}

func randomBits() uint64 {
	var b [8]byte
	_, _, errno := syscall.Syscall(sysGetrandom, uintptr(unsafe.Pointer(&b[0])), 8, 0)
	value := uint64(os.Getpid())
	if errno == 0 {
		value = *(*uint64)(unsafe.Pointer(&b[0]))
	}
	return value & (1<<30 - 1)
}

func probeTagging() bool {
	var current syscall.Rlimit
	if prlimit(0, nil, &current) != nil || current.Max != infinity {
		return false
	}
	want := syscall.Rlimit{Cur: tagPrefix, Max: infinity}
	var got syscall.Rlimit
	ok := prlimit(0, &want, &got) == nil && prlimit(0, nil, &got) == nil && got.Cur == tagPrefix
	want.Cur = infinity
	return prlimit(0, &want, nil) == nil && ok
}

// NewTag returns a tag that no other tree of this daemon has.
func NewTag() uint64 { return tagPrefix | uint64(tagCounter.Add(1)) }

// Retag moves a running process, and what it forks from now on, to another tag.
func Retag(pid int, tag uint64) error {
	limit := syscall.Rlimit{Cur: tag, Max: infinity}
	return prlimit(pid, &limit, nil)
}

func prlimit(pid int, set, get *syscall.Rlimit) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), rlimitRTTime,
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Start forks and executes. The child is a session leader with default signals and no descriptor but Files;
// an error is a *StartError.
func Start(c *Command) (*Process, error) {
	attr := &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: c.Files, Sys: &syscall.SysProcAttr{Setsid: true}}
	if c.TTY {
		attr.Sys.Setctty = true
	}
	if c.User != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID, Groups: c.User.Groups}
	}
	p := &Process{Tag: NewTag(), onEnd: c.OnEnd}
	p.mu.Lock() // a signal waits until the pid is known; so does the end
	defer p.mu.Unlock()
	err := func() error {
		starting.Lock()
		defer starting.Unlock()
		if tagging {
			limit := syscall.Rlimit{Cur: p.Tag, Max: infinity}
			_ = prlimit(0, &limit, nil)
		}
		restore, raise := beforeFork(), lowerProcesses()
		pid, err := syscall.ForkExec(c.Path, c.Argv, attr)
		raise()
		restore()
		if tagging { // the daemon must not look like a part of any tree
			limit := syscall.Rlimit{Cur: infinity, Max: infinity}
			_ = prlimit(0, &limit, nil)
		}
		if err == nil {
			p.PID = pid
			limitProcesses(pid)
			children.add(p)
		}
		return err
	}()
	if err != nil {
		return nil, diagnose(c, err)
	}
	return p, nil
}

// preferred is what a command's oom_score_adj becomes: when the sandbox's memory runs out, a command goes, not the daemon.
const preferred = "1000"

var (
	oomFile    *os.File // this process's own oom_score_adj; the fork inherits what it holds
	oomOwn     []byte
	dirtyMask  bool // the daemon was started with signals blocked
	cleanedSet [8]byte
)

// Prepare opens what each fork needs. Call it before the process makes itself undumpable, which closes /proc/self to it.
func Prepare() {
	if file, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0); err == nil {
		text := make([]byte, 16)
		if n, err := file.Read(text); err == nil {
			if value, err := strconv.Atoi(string(trimSpace(text[:n]))); err == nil && value < 1000 {
				oomOwn = []byte(strconv.Itoa(value))
				oomFile = file
			}
		}
		if oomFile == nil {
			file.Close()
		}
	}
	var mask [8]byte
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, 0, uintptr(unsafe.Pointer(&mask[0])), 8, 0, 0)
	dirtyMask = errno == 0 && mask != cleanedSet
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == ' ') {
		b = b[:len(b)-1]
	}
	return b
}
