package session

import (
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/proc"
)

var folders atomic.Int64

// makeFolder makes a folder that the session's user can reach, for the FIFOs of one command at a time.
func makeFolder(spoolDir string, who *proc.Identity) (string, error) {
	var last error
	for _, parent := range []string{spoolDir, "/dev/shm", "/tmp", "/var/tmp", "/run"} {
		if parent == "" {
			continue
		}
		name := parent + "/.sandman-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(folders.Add(1), 10)
		if err := os.Mkdir(name, 0o700); err != nil {
			last = err
			continue
		}
		if who != nil {
			_ = os.Chown(name, int(who.UID), int(who.GID))
		}
		if last = proc.CheckDir(who, name); last == nil {
			return name, nil
		}
		os.Remove(name)
	}
	return "", &proc.StartError{Reason: proc.NoSession, Detail: "a session needs one writable folder (/dev/shm, /tmp): " + last.Error()}
}

// streams are one command's FIFOs.
type streams struct {
	run             string // what the shell is to do
	in, out, errors string // names; in may be /dev/null
	names           []string
	feed            *os.File
}

// open makes the FIFOs and connects our ends. The shell opens the others when it runs the command.
func (s *shell) open(e *execs.Exec, fresh bool) (*streams, error) {
	f := &streams{in: "/dev/null"}
	own := func(name string) {
		if info, err := os.Stat(s.folder); err == nil {
			if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
				_ = os.Chown(name, int(owner.Uid), int(owner.Gid))
			}
		}
	}
	made := func(kind string) (string, error) {
		name := s.folder + "/" + kind
		_ = os.Remove(name)
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			return "", err
		}
		f.names = append(f.names, name)
		own(name)
		return name, nil
	}
	fail := func(err error) (*streams, error) {
		f.remove()
		return nil, &proc.StartError{Reason: proc.NoSession, Detail: "no FIFO could be made: " + err.Error()}
	}
	connect := func(kind string, output *execs.Output) (string, error) {
		name, err := made(kind)
		if err != nil {
			return "", err
		}
		const flags = syscall.O_NONBLOCK | syscall.O_CLOEXEC | syscall.O_NOFOLLOW
		read, err := syscall.Open(name, syscall.O_RDONLY|flags, 0)
		if err != nil {
			return "", err
		}
		guard, err := syscall.Open(name, syscall.O_WRONLY|flags, 0)
		if err != nil {
			syscall.Close(read)
			return "", err
		}
		return name, output.Open(read, false, os.NewFile(uintptr(guard), name))
	}
	text := e.Request().Command
	if !fresh { // the first command's cwd and env are those of the shell itself
		text = settings(e.Request()) + text
	}
	f.run = s.dialect.builtin + "eval " + quote(text)
	if s.dialect.sources {
		name := s.folder + "/bash" // as error messages name the place
		f.names = append(f.names, name)
		f.run = s.dialect.builtin + ". " + quote(name)
		_ = os.Remove(name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return fail(err)
		}
		own(name)
	}
	var err error
	if f.out, err = connect("out", e.Stdout); err != nil {
		return fail(err)
	}
	if e.Spec.MergeStderr {
		e.NoStderr()
	} else if f.errors, err = connect("err", e.Stderr); err != nil {
		return fail(err)
	}
	_, nullErr := os.Stat("/dev/null")
	if e.Input == nil && nullErr == nil {
		return f, nil
	}
	if f.in, err = made("in"); err != nil {
		return fail(err)
	}
	if f.feed, err = writeEnd(f.in); err != nil {
		return fail(err)
	}
	return f, nil
}

// writeEnd opens a FIFO for writing before its reader has: by being that reader for a moment.
func writeEnd(name string) (*os.File, error) {
	const flags = syscall.O_NONBLOCK | syscall.O_CLOEXEC | syscall.O_NOFOLLOW
	both, err := syscall.Open(name, syscall.O_RDWR|flags, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(both)
	write, err := syscall.Open(name, syscall.O_WRONLY|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(write), name), nil
}

// start feeds the command's input as soon as the shell has opened it: a FIFO without a reader refuses bytes and
// would lose its end. There is no event for that, so it looks, quickly at first, until the command is done.
func (f *streams) start(e *execs.Exec) {
	if f.feed == nil {
		return
	}
	raw, err := f.feed.SyscallConn()
	if err != nil {
		return
	}
	go func() {
		for wait := 100 * time.Microsecond; !e.Ended(); wait = min(2*wait, 20*time.Millisecond) {
			ready := false
			_ = raw.Control(func(fd uintptr) { ready = hasReader(int(fd)) })
			if ready {
				if e.Input == nil {
					f.feed.Close()
				} else {
					e.Feed(f.feed)
				}
				return
			}
			time.Sleep(wait)
		}
		f.feed.Close()
	}()
}

func hasReader(fd int) bool {
	poll := struct {
		fd      int32
		events  int16
		revents int16
	}{fd: int32(fd), events: 4}
	const pollErr = 8
	var now syscall.Timespec
	_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return errno == 0 && poll.revents&pollErr == 0
}

func (f *streams) remove() {
	for _, name := range f.names {
		_ = os.Remove(name)
	}
}
