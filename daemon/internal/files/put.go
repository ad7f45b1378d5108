package files

// PUT of one file: resolve, stage, receive, publish. Nothing of the sandbox's changes before the last
// step, which is one rename; only what cannot be renamed over (a mount point, a file in a folder that may
// not be written) and appends are written in place, and then from content that has arrived whole.

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/problem"
)

// pseudoWriteBytes is the most that one write to a /proc or /sys file can mean.
const pseudoWriteBytes = 1 << 20

var errPseudo = errors.New("a file of /proc or /sys")

type upload struct {
	*target
	stage         *staged
	mode          uint32
	modeGiven     bool
	owner         *Identity
	append, fsync bool
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user", "mode", "owner", "parents", "append", "fsync")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	var u upload
	if u.mode, u.modeGiven, err = q.mode("mode"); err != nil {
		return err
	}
	if u.owner, err = h.ownerOf(q); err != nil {
		return err
	}
	parents, parentsErr := q.flag("parents", true)
	appendTo, appendErr := q.flag("append", false)
	fsync, fsyncErr := q.flag("fsync", false)
	if err := errors.Join(parentsErr, appendErr, fsyncErr); err != nil {
		return err
	}
	u.append, u.fsync = appendTo, fsync
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	if r.Header.Get("Content-Range") != "" { // RFC 9110: a server that would take the part for the whole must refuse it
		return problem.Invalid("Content-Range", "a part of a file cannot be put")
	}
	full := absolute(h.options.DefaultDir, path)
	if limit := h.options.MaxFileBytes; limit > 0 && r.ContentLength > limit {
		return tooLarge(limit, full)
	}
	err = as.do(func() (err error) {
		if u.target, err = findTarget(full, parents); err == nil {
			if u.stage, err = h.stageFor(u.target); err != nil && err != errPseudo {
				u.target.close()
			}
		}
		return err
	})
	if err == errPseudo {
		err = h.putPseudo(w, r, as, u)
		u.target.close()
		return failed(err, full)
	}
	if err != nil {
		return failed(err, full)
	}
	defer u.target.close()
	defer u.stage.discard(as)
	if err := h.receive(w, r, u.stage.file, full); err != nil {
		return failed(err, full)
	}
	var st syscall.Stat_t
	created := false
	err = as.do(func() (err error) {
		st, created, err = u.commit()
		return err
	})
	if err != nil {
		return failed(err, u.path)
	}
	return answerEntry(w, newEntry(u.path, u.name, st), created)
}

// ownerOf reads the owner parameter: a user name, or "uid:gid".
func (h *Handler) ownerOf(q query) (*Identity, error) {
	owner, given := q["owner"]
	if !given {
		return nil, nil
	}
	identity, err := h.lookup("owner", owner)
	if err != nil {
		return nil, err
	}
	return &identity, nil
}

func answerEntry(w http.ResponseWriter, entry Entry, created bool) error {
	entry.Created = &created
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(entry) // the change is made; a caller that went away cannot undo it
	return nil
}

// receive copies the body, whole or not at all, into a file that nobody sees yet.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request, file *os.File, path string) error {
	body := &boundedBody{
		body: r.Body, control: http.NewResponseController(w), idle: h.options.BodyIdleTimeout, path: path,
		left: h.options.MaxFileBytes, limit: h.options.MaxFileBytes,
	}
	buffer := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buffer)
	_, err := io.CopyBuffer(struct{ io.Writer }{file}, body, *buffer)
	body.finish()
	return err
}

// boundedBody is a request body with an end: of bytes, and of patience.
type boundedBody struct {
	body        io.Reader
	control     *http.ResponseController
	idle        time.Duration
	extended    time.Time
	path        string
	limit, left int64
	total       int64
}

func (b *boundedBody) Read(buffer []byte) (int, error) {
	if now := time.Now(); now.Sub(b.extended) > b.idle/16 { // a timer a read would cost more than it tells
		b.extended = now
		_ = b.control.SetReadDeadline(now.Add(b.idle)) // not supported: no deadline, as in tests without a socket
	}
	n, err := b.body.Read(buffer)
	b.total += int64(n)
	if b.limit > 0 {
		if b.left -= int64(n); b.left < 0 {
			return 0, tooLarge(b.limit, b.path)
		}
	}
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, withPath(&problem.Problem{
			Slug: "upload-stalled", Title: "The upload stalled", Status: http.StatusRequestTimeout, Retryable: true,
			Detail: "nothing arrived for " + b.idle.String() + "; nothing was stored", Cause: problem.Infra,
		}, b.path)
	}
	return n, withPath(&problem.Problem{
		Slug: "upload-incomplete", Title: "The upload ended early", Status: http.StatusBadRequest, Retryable: true,
		Detail: err.Error() + "; nothing was stored", Cause: problem.Infra,
	}, b.path)
}

// finish gives the connection back without a deadline.
func (b *boundedBody) finish() {
	if !b.extended.IsZero() {
		_ = b.control.SetReadDeadline(time.Time{})
	}
}

// commit publishes the received content, under the rights of the current thread.
func (u *upload) commit() (st syscall.Stat_t, created bool, err error) {
	if err = u.makeMissing(u.owner); err != nil {
		return st, false, err
	}
	switch {
	case u.append:
		created, err = u.appendOrCreate()
	case u.stage.mustDup:
		err = u.writeInPlace(0)
	default:
		if err = u.dress(); err == nil {
			err = u.stage.publish(u.dir, u.name, true)
		}
		created = !u.exists
		if errors.Is(err, syscall.EBUSY) && u.exists {
			err = u.writeInPlace(0)
		}
	}
	if err == nil && u.fsync {
		err = syncFolder(u.dir)
	}
	if err == nil {
		st, err = statat(u.dir, u.name, atSymlinkNofollow)
	}
	return st, created, err
}

// dress gives the staged file the owner and mode it will be seen with.
func (u *upload) dress() error {
	fd, mode := u.stage.fd(), uint32(0o644)
	if u.exists {
		mode = uint32(u.st.Mode) & 0o7777
		kept := syscall.Fchown(fd, int(u.st.Uid), int(u.st.Gid)) == nil
		if !kept { // written with the rights of its group, say: it becomes the writer's, as the new file it is
			_ = syscall.Fchown(fd, -1, int(u.st.Gid))
			mode &= 0o777
		}
	}
	if u.owner != nil {
		if err := syscall.Fchown(fd, int(u.owner.UID), int(u.owner.GID)); err != nil {
			return err
		}
	}
	if u.modeGiven {
		mode = u.mode
	}
	if err := syscall.Fchmod(fd, mode); err != nil { // after chown, which clears setuid
		return err
	}
	if u.fsync {
		return u.stage.file.Sync()
	}
	return nil
}

// appendOrCreate has one winner against another that creates the same file.
func (u *upload) appendOrCreate() (created bool, err error) {
	for range maxLinks {
		if err := u.writeInPlace(syscall.O_APPEND); !errors.Is(err, syscall.ENOENT) {
			return false, err
		}
		u.exists = false
		if err := u.dress(); err != nil {
			return false, err
		}
		if err := u.stage.publish(u.dir, u.name, false); !errors.Is(err, syscall.EEXIST) {
			return true, err
		}
	}
	return false, syscall.EBUSY
}

func (u *upload) writeInPlace(flags int) error {
	fd, err := openat(u.dir, u.name, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|flags, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	st, err := fstat(fd)
	if err == nil {
		err = regularOnly(st, u.path)
	}
	if err == nil {
		err = u.stage.copyInto(fd)
	}
	if err == nil && flags&syscall.O_APPEND == 0 {
		if st, err = fstat(u.stage.fd()); err == nil {
			err = syscall.Ftruncate(fd, st.Size)
		}
	}
	if err == nil && u.owner != nil {
		err = syscall.Fchown(fd, int(u.owner.UID), int(u.owner.GID))
	}
	if err == nil && u.modeGiven {
		err = syscall.Fchmod(fd, u.mode)
	}
	if err == nil && u.fsync {
		err = syscall.Fsync(fd)
	}
	return err
}

func syncFolder(dir int) error {
	fd, err := openat(dir, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, syscall.EACCES) {
		return nil // a folder that may be written but not read: the file itself is synced
	}
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return syscall.Fsync(fd)
}

// putPseudo hands the body to the kernel in one write, the way `echo 1 > /proc/sys/…` does.
func (h *Handler) putPseudo(w http.ResponseWriter, r *http.Request, as *rights, u upload) error {
	content, err := io.ReadAll(io.LimitReader(&boundedBody{
		body: r.Body, control: http.NewResponseController(w), idle: h.options.BodyIdleTimeout, path: u.path,
	}, pseudoWriteBytes+1))
	if err != nil {
		return err
	}
	if len(content) > pseudoWriteBytes {
		return tooLarge(pseudoWriteBytes, u.path)
	}
	err = as.do(func() error {
		fd, err := openat(u.dir, u.name, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_TRUNC, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		n, err := syscall.Write(fd, content)
		if err == nil && n < len(content) {
			err = io.ErrShortWrite
		}
		return err
	})
	if err != nil {
		return err
	}
	return answerEntry(w, newEntry(u.path, u.name, u.st), false)
}
