package files

// Working with another user's rights. Linux keeps credentials per thread; Go hides the threads. So the
// work runs on a goroutine that is locked to its thread, whose *effective* ids are changed by raw system
// calls (the wrappers in package syscall would change every thread of the daemon).
//
// The effective ids, not only fsuid, because dropping euid 0 also empties the effective capabilities:
// with fsuid alone the thread would keep CAP_SYS_PTRACE and read other users' /proc entries. The real and
// saved ids stay the daemon's, so that user can neither signal nor trace it.

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"sandman.dev/daemon/internal/problem"
)

// rights is an Identity that differs from the daemon's own; nil means that work is done as the daemon.
type rights struct{ Identity }

var own = struct{ uid, gid int }{syscall.Geteuid(), syscall.Getegid()}

func (h *Handler) rightsOf(user string) (*rights, error) {
	if user == "" {
		user = h.options.User
	}
	if user == "" {
		return nil, nil
	}
	identity, err := h.lookup("user", user)
	if err != nil {
		return nil, err
	}
	if int(identity.UID) == own.uid && int(identity.GID) == own.gid {
		return nil, nil
	}
	return &rights{identity}, nil
}

// lookup resolves a user for the named field of the request.
func (h *Handler) lookup(field, user string) (Identity, error) {
	if strings.ContainsRune(user, 0) {
		return Identity{}, problem.Invalid(field, "holds a NUL byte")
	}
	lookup := h.options.Lookup
	if lookup == nil {
		lookup = numericIdentity
	}
	identity, err := lookup(user)
	var typed *problem.Problem
	if err != nil && !errors.As(err, &typed) {
		err = problem.Invalid(field, err.Error())
	}
	return identity, err
}

// numericIdentity reads "uid" or "uid:gid"; a missing group is the one numbered like the user.
func numericIdentity(user string) (Identity, error) {
	uidText, gidText, hasGroup := strings.Cut(user, ":")
	if !hasGroup {
		gidText = uidText
	}
	// 31 bits: (uid_t)-1 means "leave as it is" to the kernel, and must never be asked for.
	uid, err := strconv.ParseUint(uidText, 10, 31)
	if err != nil {
		return Identity{}, fmt.Errorf("no such user: %q", user)
	}
	gid, err := strconv.ParseUint(gidText, 10, 31)
	if err != nil {
		return Identity{}, fmt.Errorf("no such group: %q", user)
	}
	return Identity{UID: uint32(uid), GID: uint32(gid)}, nil
}

// do runs work with these rights and returns what it returned. A panic in work is a panic of the caller.
func (r *rights) do(work func() error) error {
	if r == nil {
		return work()
	}
	outcome := make(chan func() error, 1)
	go r.onThread(work, outcome)
	return (<-outcome)()
}

func (r *rights) onThread(work func() error, outcome chan<- func() error) {
	runtime.LockOSThread()
	if syscall.Gettid() == syscall.Getpid() {
		// A change of ids clears the thread's parent-death signal, by which the sandbox ends with its
		// supervisor; the main thread carries it. While this goroutine holds that thread, another cannot get it.
		inner := make(chan func() error, 1)
		go r.onThread(work, inner)
		outcome <- <-inner
		runtime.UnlockOSThread()
		return
	}
	groups, err := r.assume()
	if err == nil {
		func() {
			defer func() {
				if cause := recover(); cause != nil {
					outcome <- func() error { panic(cause) }
				}
			}()
			result := work()
			outcome <- func() error { return result }
		}()
	}
	if restoreErr := restore(groups); restoreErr == nil {
		runtime.UnlockOSThread()
	} // else the thread ends with this goroutine: nobody else may get it
	if err != nil {
		outcome <- func() error { return err }
	}
}

// assume changes the current thread; it returns the groups that restore needs.
func (r *rights) assume() (groups []uint32, err error) {
	if groups, err = threadGroups(); err != nil {
		return nil, err
	}
	wanted := r.Groups
	if !slices.Contains(wanted, r.GID) {
		wanted = append(slices.Clip(wanted), r.GID)
	}
	err = setThreadGroups(wanted)
	if err == nil {
		err = setEffective(syscall.SYS_SETRESGID, int(r.GID))
	}
	if err == nil {
		err = setEffective(syscall.SYS_SETRESUID, int(r.UID))
	}
	if err != nil {
		return groups, (&problem.Problem{
			Slug: "permission-denied", Title: "The daemon may not work as that user", Status: http.StatusForbidden,
			Detail: fmt.Sprintf("the daemon runs as %d:%d and cannot become %d:%d here: %v", own.uid, own.gid, r.UID, r.GID, err),
		}).With("field", "user").With("errno", errnoName(err))
	}
	return groups, nil
}

func restore(groups []uint32) error {
	if groups == nil {
		return nil // nothing was changed
	}
	return errors.Join(setEffective(syscall.SYS_SETRESUID, own.uid),
		setEffective(syscall.SYS_SETRESGID, own.gid), restoreGroups(groups))
}

func restoreGroups(groups []uint32) error {
	if now, err := threadGroups(); err == nil && slices.Equal(now, groups) {
		return nil // without CAP_SETGID they never changed and cannot be set
	}
	return setThreadGroups(groups)
}

func setEffective(call uintptr, id int) error {
	if _, _, errno := syscall.RawSyscall(call, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
		return errno
	}
	return nil
}

// threadGroups never returns a nil slice without an error.
func threadGroups() ([]uint32, error) {
	count, _, errno := syscall.RawSyscall(syscall.SYS_GETGROUPS, 0, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	groups := make([]uint32, count+1) // never empty, so that its address can be taken
	count, _, errno = syscall.RawSyscall(syscall.SYS_GETGROUPS, count, uintptr(unsafe.Pointer(&groups[0])), 0)
	if errno != 0 {
		return nil, errno
	}
	return groups[:count], nil
}

func setThreadGroups(groups []uint32) error {
	list := append(slices.Clip(groups), 0) // likewise never empty
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
