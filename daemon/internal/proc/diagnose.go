package proc

import (
	"errors"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"
)

// Reason is why a command could not be started.
type Reason string

// The reasons, as the protocol names them.
const (
	NotFound        Reason = "not_found"
	Permission      Reason = "permission"
	ArgumentsTooBig Reason = "argument_list_too_long"
	BadCwd          Reason = "cwd"
	BadUser         Reason = "user"
	ShellNotFound   Reason = "shell_not_found"
	ExecFormat      Reason = "exec_format"
	Busy            Reason = "busy"
	Resource        Reason = "resource"
	NoTerminal      Reason = "pty"
	NoSession       Reason = "session"
	Other           Reason = "other"
)

// StartError is a typed failure to start: nothing of the command has run.
type StartError struct {
	Reason Reason
	Detail string
	Errno  syscall.Errno
}

func (e *StartError) Error() string { return string(e.Reason) + ": " + e.Detail }

// diagnose finds out which step of a start failed: the kernel tells only the errno. It repeats the steps, as the
// user, on a thread that is thrown away; it runs on failure only.
func diagnose(c *Command, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return &StartError{Reason: Other, Detail: err.Error()}
	}
	fail := func(reason Reason, detail string) error {
		return &StartError{Reason: reason, Detail: detail, Errno: errno}
	}
	switch errno {
	case syscall.E2BIG:
		return fail(ArgumentsTooBig, "arguments and environment are larger than the kernel takes (131,071 bytes in one, about 2 MiB in all)")
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return fail(Resource, "no process could be made: "+errno.Error())
	}
	if step, stepErr := rehearse(c.User, c.Dir); stepErr != 0 {
		errno = stepErr
		if step == BadUser {
			return fail(BadUser, "cannot become that user: "+stepErr.Error())
		}
		return fail(BadCwd, "cannot work in "+c.Dir+": "+stepErr.Error())
	}
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		full := c.Path
		if !strings.HasPrefix(full, "/") {
			full = path.Join(c.Dir, full)
		}
		if _, statErr := os.Stat(full); statErr == nil {
			return fail(NotFound, c.Path+": its interpreter or loader does not exist")
		}
		return fail(NotFound, c.Path+": "+errno.Error())
	case syscall.EACCES, syscall.EPERM:
		return fail(Permission, c.Path+": "+errno.Error())
	case syscall.ENOEXEC:
		return fail(ExecFormat, c.Path+": not a program for this machine, and no #! line")
	case syscall.ETXTBSY:
		return fail(Busy, c.Path+": is being written")
	}
	return fail(Other, c.Path+": "+errno.Error())
}

// CheckDir says whether the user can work in dir; nil user: the daemon's own.
func CheckDir(user *Identity, dir string) error {
	step, errno := rehearse(user, dir)
	switch {
	case errno == 0:
		return nil
	case step == BadUser:
		return &StartError{Reason: BadUser, Detail: "cannot become that user: " + errno.Error(), Errno: errno}
	default:
		return &StartError{Reason: BadCwd, Detail: "cannot work in " + dir + ": " + errno.Error(), Errno: errno}
	}
}

func rehearse(user *Identity, dir string) (step Reason, errno syscall.Errno) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its changed identity
		if _, _, e := syscall.RawSyscall(syscall.SYS_UNSHARE, syscall.CLONE_FS, 0, 0); e != 0 {
			return // cannot rehearse: the caller keeps the errno it has
		}
		if user != nil {
			if e := become(user); e != 0 {
				step, errno = BadUser, e
				return
			}
		}
		if dir != "" {
			if e := chdir(dir); e != 0 {
				step, errno = BadCwd, e
			}
		}
	}()
	<-done
	return step, errno
}
