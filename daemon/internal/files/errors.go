package files

// From errno to problem: the one place where the kernel's answer becomes a typed one.

import (
	"errors"
	"io/fs"
	"net/http"
	"strconv"
	"syscall"

	"sandman.dev/daemon/internal/problem"
)

type errnoProblem struct {
	name      string
	slug      string
	title     string
	status    int
	retryable bool
	cause     string
}

var errnoProblems = map[syscall.Errno]errnoProblem{
	syscall.ENOENT:       {"ENOENT", "not-found", "No such file or directory", http.StatusNotFound, false, problem.Caller},
	syscall.EISDIR:       {"EISDIR", "is-a-directory", "That is a directory", http.StatusConflict, false, problem.Caller},
	syscall.ENOTDIR:      {"ENOTDIR", "not-a-directory", "That is not a directory", http.StatusConflict, false, problem.Caller},
	syscall.EACCES:       {"EACCES", "permission-denied", "Permission denied", http.StatusForbidden, false, problem.Caller},
	syscall.EPERM:        {"EPERM", "permission-denied", "Operation not permitted", http.StatusForbidden, false, problem.Caller},
	syscall.EROFS:        {"EROFS", "read-only", "Read-only file system", http.StatusForbidden, false, problem.Caller},
	syscall.ENOSPC:       {"ENOSPC", "no-space", "No space left", http.StatusInsufficientStorage, false, problem.Task},
	syscall.EDQUOT:       {"EDQUOT", "no-space", "Disk quota exceeded", http.StatusInsufficientStorage, false, problem.Task},
	syscall.ENAMETOOLONG: {"ENAMETOOLONG", "name-too-long", "The name is too long", http.StatusUnprocessableEntity, false, problem.Caller},
	syscall.EINVAL:       {"EINVAL", "invalid", "The system refuses these arguments", http.StatusUnprocessableEntity, false, problem.Caller},
	syscall.EILSEQ:       {"EILSEQ", "invalid", "The file system refuses this name", http.StatusUnprocessableEntity, false, problem.Caller},
	syscall.EFBIG:        {"EFBIG", "too-large", "The file would be too large", http.StatusRequestEntityTooLarge, false, problem.Caller},
	syscall.ELOOP:        {"ELOOP", "link-loop", "Too many levels of symbolic links", http.StatusConflict, false, problem.Caller},
	syscall.EEXIST:       {"EEXIST", "exists", "That exists already", http.StatusConflict, false, problem.Caller},
	syscall.ENOTEMPTY:    {"ENOTEMPTY", "directory-not-empty", "The directory is not empty", http.StatusConflict, false, problem.Caller},
	syscall.EBUSY:        {"EBUSY", "busy", "Busy, or a mount point", http.StatusConflict, true, problem.Task},
	syscall.ETXTBSY:      {"ETXTBSY", "busy", "The program is running", http.StatusConflict, true, problem.Task},
	syscall.EXDEV:        {"EXDEV", "cross-device", "On another file system", http.StatusConflict, false, problem.Caller},
	syscall.EMLINK:       {"EMLINK", "too-many-links", "Too many links", http.StatusConflict, false, problem.Caller},
	syscall.ENXIO:        {"ENXIO", "special-file", "Not a regular file", http.StatusConflict, false, problem.Caller},
	syscall.ENODEV:       {"ENODEV", "special-file", "Not a regular file", http.StatusConflict, false, problem.Caller},
	syscall.EOPNOTSUPP:   {"EOPNOTSUPP", "not-supported", "The file system cannot do that", http.StatusConflict, false, problem.Caller},
	syscall.ENOSYS:       {"ENOSYS", "not-supported", "The kernel cannot do that", http.StatusConflict, false, problem.Caller},
	syscall.EMFILE:       {"EMFILE", "resource-exhausted", "Too many open files", http.StatusServiceUnavailable, true, problem.Task},
	syscall.ENFILE:       {"ENFILE", "resource-exhausted", "Too many open files on the machine", http.StatusServiceUnavailable, true, problem.Infra},
	syscall.ENOMEM:       {"ENOMEM", "resource-exhausted", "Out of memory", http.StatusServiceUnavailable, true, problem.Task},
	syscall.ESTALE:       {"ESTALE", "io-error", "Stale file handle", http.StatusInternalServerError, true, problem.Infra},
	syscall.EIO:          {"EIO", "io-error", "Input/output error", http.StatusInternalServerError, true, problem.Infra},
	syscall.ESRCH:        {"ESRCH", "not-found", "No such process", http.StatusNotFound, false, problem.Caller},
}

// errnoName is "EACCES" for EACCES, "E123" for one without a name here, and "" for no errno at all.
func errnoName(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	if known, ok := errnoProblems[errno]; ok {
		return known.name
	}
	return "E" + strconv.Itoa(int(errno))
}

// failed turns err into the problem to be told of path. What is a problem already stays as it is.
func failed(err error, path string) error {
	if err == nil {
		return nil
	}
	var typed *problem.Problem
	if errors.As(err, &typed) {
		return typed
	}
	var at *fs.PathError
	if errors.As(err, &at) { // it knows better which file it was
		path, err = at.Path, at.Err
	}
	p := &problem.Problem{Detail: err.Error()}
	var errno syscall.Errno
	errors.As(err, &errno)
	if known, ok := errnoProblems[errno]; ok {
		p.Slug, p.Title, p.Status, p.Retryable, p.Cause = known.slug, known.title, known.status, known.retryable, known.cause
	} else {
		p.Slug, p.Title, p.Status = "io-error", "The file operation failed", http.StatusInternalServerError
		p.Retryable, p.Cause = true, problem.Infra
	}
	if name := errnoName(err); name != "" {
		p.With("errno", name)
	}
	return withPath(p, path)
}

// withPath adds path, and path_b64 when it is no text.
func withPath(p *problem.Problem, path string) *problem.Problem {
	text, b64 := pathText(path)
	p.With("path", text)
	if b64 != "" {
		p.With("path_b64", b64)
	}
	return p
}

func specialFile(kind, path string) error {
	return withPath((&problem.Problem{
		Slug: "special-file", Title: "Not a regular file", Status: http.StatusConflict,
		Detail: "a " + kind + " is neither read nor written as a file",
	}).With("file_type", kind), path)
}
