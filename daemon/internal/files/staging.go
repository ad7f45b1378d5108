package files

// Content on its way to a name. It is gathered in a file without a name (O_TMPFILE) in the target's own
// file system, so that a daemon killed at any moment leaves nothing, and takes the name in one rename.

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
)

// staged is a file that nobody else can see, or (name set) whose name nobody else expects.
type staged struct {
	file    *os.File
	dir     int    // O_PATH of its folder, owned by the target; -1: staged elsewhere, can only be copied from
	name    string // "" while it has none
	mustDup bool   // it lies elsewhere: the target is written in place
}

func temporaryName() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails: package crypto/rand ends the program instead
	return ".sandman-" + hex.EncodeToString(random[:]) + ".part"
}

// hasProcFD: only through /proc can a file without a name be given one by its opener.
func hasProcFD() bool {
	fd, err := openat(atFDCWD, "/", oPath|syscall.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	return syscall.Stat(procFD(fd), &st) == nil
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// stageIn makes a staging file in a folder, under the rights of the current thread.
func (h *Handler) stageIn(dir int) (*staged, error) {
	if !h.options.withoutTmpfile {
		fd, err := openat(dir, ".", oTmpfile|syscall.O_RDWR, 0o600)
		if err == nil {
			return &staged{file: os.NewFile(uintptr(fd), "upload"), dir: dir}, nil
		}
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EACCES) {
			return nil, err
		}
		// EOPNOTSUPP, EISDIR, ENOENT: this file system cannot; a named file can
	}
	name := temporaryName()
	fd, err := openat(dir, name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return &staged{file: os.NewFile(uintptr(fd), "upload"), dir: dir, name: name}, nil
}

// stageFor stages beside the target. Where its folder may not be written but the file itself may (a file
// mounted into a read-only root), the content waits in a scratch folder and is then written in place.
func (h *Handler) stageFor(t *target) (*staged, error) {
	if t.pseudo {
		return nil, errPseudo
	}
	stage, err := h.stageIn(t.dir)
	if err == nil || !t.exists {
		return stage, err
	}
	for _, folder := range h.options.StagingDirs {
		dir, openErr := openat(atFDCWD, folder, oPath|syscall.O_DIRECTORY, 0)
		if openErr != nil {
			continue
		}
		elsewhere, stageErr := h.stageIn(dir)
		if stageErr == nil && elsewhere.name != "" {
			stageErr = unlinkat(dir, elsewhere.name, 0) // it is only read from: it needs no name
			elsewhere.name = ""
		}
		_ = syscall.Close(dir)
		if stageErr == nil {
			elsewhere.dir, elsewhere.mustDup = -1, true
			return elsewhere, nil
		}
	}
	return nil, err
}

// discard gives the space back. Safe after publish, when it only closes.
func (s *staged) discard(as *rights) {
	if s.name != "" {
		_ = as.do(func() error { return unlinkat(s.dir, s.name, 0) })
	}
	_ = s.file.Close()
}

func (s *staged) fd() int { return int(s.file.Fd()) }

// publish gives the content its name at once. replace false: EEXIST where that name is taken.
func (s *staged) publish(dir int, name string, replace bool) error {
	if s.name == "" {
		if err := linkat(atFDCWD, procFD(s.fd()), dir, name, atSymlinkFollow); !errors.Is(err, syscall.EEXIST) || !replace {
			return err
		}
		temporary := temporaryName()
		if err := linkat(atFDCWD, procFD(s.fd()), dir, temporary, atSymlinkFollow); err != nil {
			return err
		}
		err := renameat2(dir, temporary, dir, name, 0)
		if err != nil {
			_ = unlinkat(dir, temporary, 0)
		}
		return err
	}
	if !replace {
		return linkat(s.dir, s.name, dir, name, 0) // discard then takes the first name away
	}
	err := renameat2(s.dir, s.name, dir, name, 0)
	if err == nil {
		s.name = ""
	}
	return err
}

// copyInto writes the content to an open file. When that fails half-way, an appended file gets its old
// length back, unless somebody else has written to it meanwhile.
func (s *staged) copyInto(fd int) error {
	before, err := fstat(fd)
	if err != nil {
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	buffer := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buffer)
	written := int64(0)
	for {
		n, err := s.file.Read(*buffer)
		if err == nil {
			err = writeAll(fd, (*buffer)[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if now, statErr := fstat(fd); statErr == nil && now.Size >= before.Size && now.Size <= before.Size+written+int64(n) {
				_ = syscall.Ftruncate(fd, before.Size)
			}
			return err
		}
		written += int64(n)
	}
}

func writeAll(fd int, content []byte) error {
	for len(content) > 0 {
		n, err := syscall.Write(fd, content)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		content = content[n:]
	}
	return nil
}
