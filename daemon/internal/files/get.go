package files

// GET and HEAD of one file. The file is opened under the caller's rights and then copied without them.
//
// Three kinds of file lie about their size: those of /proc (0), those of /sys (a page) and those that
// change while they are read. The first two are read to their end; for the third the connection is cut
// short of the announced length, so that a truncated body never looks whole.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"

	"sandman.dev/daemon/internal/problem"
)

const (
	// copyBytes is one step of a copy: below 64 KiB system calls dominate, above 256 KiB nothing is won.
	copyBytes = 256 << 10
	// pseudoWholeBytes of a /proc file are gathered first, so that nearly all have an exact Content-Length.
	pseudoWholeBytes = 1 << 20
	// pseudoMaxBytes ends the reading of endless ones (/proc/self/pagemap is 256 GiB of zeros).
	pseudoMaxBytes = 64 << 20
)

var copyBuffers = sync.Pool{New: func() any { buffer := make([]byte, copyBytes); return &buffer }}

func (h *Handler) get(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	full := absolute(h.options.DefaultDir, path)
	if r.Method == http.MethodHead {
		return h.head(w, as, full)
	}
	var fd int
	var st syscall.Stat_t
	err = as.do(func() (err error) {
		fd, st, err = openRegular(full)
		return err
	})
	if err != nil {
		return failed(err, full)
	}
	if st.Size == 0 || isPseudo(fd) {
		defer syscall.Close(fd)
		return servePseudo(w, fd, st, full)
	}
	_ = syscall.SetNonblock(fd, false) // it is a regular file: let package os treat it as one
	file := os.NewFile(uintptr(fd), full)
	defer file.Close()
	return serveRegular(w, r, file, st, full)
}

// openRegular opens a file for reading and never blocks: what is no regular file is not even opened,
// because opening a FIFO wakes its writer and opening a device may do anything.
func openRegular(path string) (int, syscall.Stat_t, error) {
	st, err := statat(atFDCWD, path, 0)
	if err != nil {
		return -1, st, err
	}
	if err := regularOnly(st, path); err != nil {
		return -1, st, err
	}
	fd, err := openat(atFDCWD, path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return -1, st, err
	}
	if st, err = fstat(fd); err == nil {
		err = regularOnly(st, path) // it may have been swapped in between
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

func regularOnly(st syscall.Stat_t, path string) error {
	switch {
	case isType(st, syscall.S_IFREG):
		return nil
	case isType(st, syscall.S_IFDIR):
		return syscall.EISDIR
	}
	return specialFile(typeName(uint32(st.Mode)), path)
}

func (h *Handler) head(w http.ResponseWriter, as *rights, path string) error {
	var st syscall.Stat_t
	err := as.do(func() (err error) {
		st, err = statat(atFDCWD, path, 0)
		return err
	})
	if err != nil {
		return failed(err, path)
	}
	header := w.Header()
	setFileHeaders(header, st)
	header.Set("Content-Type", "application/octet-stream")
	if isType(st, syscall.S_IFREG) && st.Size > 0 {
		header.Set("ETag", etag(st))
		header.Set("Accept-Ranges", "bytes")
		header.Set("Content-Length", strconv.FormatInt(st.Size, 10))
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func serveRegular(w http.ResponseWriter, r *http.Request, file *os.File, st syscall.Stat_t, path string) error {
	header := w.Header()
	tag := etag(st)
	kind, start, length := wholeFile, int64(0), st.Size
	if condition := r.Header.Get("If-Range"); condition == "" || condition == tag {
		kind, start, length = parseRange(r.Header.Get("Range"), st.Size)
	}
	status := http.StatusOK
	switch kind {
	case unsatisfiable:
		header.Set("Content-Range", fmt.Sprintf("bytes */%d", st.Size))
		return withPath((&problem.Problem{
			Slug: "range-not-satisfiable", Title: "Nothing of the file lies in that range",
			Status: http.StatusRequestedRangeNotSatisfiable,
		}).With("size", st.Size), path)
	case partOfFile:
		status = http.StatusPartialContent
		header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, start+length-1, st.Size))
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return failed(err, path)
		}
	}
	setFileHeaders(header, st)
	header.Set("Content-Type", "application/octet-stream")
	header.Set("ETag", tag)
	header.Set("Accept-Ranges", "bytes")
	header.Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(status)
	if copied, err := copyOut(w, io.LimitReader(file, length)); err != nil || copied < length {
		panic(http.ErrAbortHandler) // short of Content-Length: the caller sees that it is not whole
	}
	return nil
}

// servePseudo reads to the end, whatever stat said of the size.
func servePseudo(w http.ResponseWriter, fd int, st syscall.Stat_t, path string) error {
	body := pseudoReader{fd}
	first, err := readPseudo(body)
	if err != nil {
		return failed(err, path)
	}
	header := w.Header()
	setFileHeaders(header, st)
	header.Set("Content-Type", "application/octet-stream")
	if len(first) < pseudoWholeBytes {
		header.Set("X-Sandman-Size", strconv.Itoa(len(first)))
		header.Set("Content-Length", strconv.Itoa(len(first)))
		_, _ = w.Write(first)
		return nil
	}
	header.Del("X-Sandman-Size")
	_, err = w.Write(first)
	if err == nil {
		_, err = copyOut(w, io.LimitReader(body, pseudoMaxBytes-pseudoWholeBytes))
	}
	if err == nil {
		_, err = body.Read(make([]byte, 4096)) // a page: some of these files refuse to be read by the byte
	}
	if err != io.EOF {
		panic(http.ErrAbortHandler) // there is more, or it cannot be told
	}
	return nil
}

// readPseudo reads the first MiB in large steps: many such files are made anew for each read.
func readPseudo(from pseudoReader) ([]byte, error) {
	return io.ReadAll(bufio.NewReaderSize(io.LimitReader(from, pseudoWholeBytes), 64<<10))
}

// pseudoReader reads a descriptor directly: package os would wait on files that say "try again" (kmsg).
type pseudoReader struct{ fd int }

func (p pseudoReader) Read(buffer []byte) (int, error) {
	var n int
	err := retryErr(func() (err error) { n, err = syscall.Read(p.fd, buffer); return err })
	switch {
	case errors.Is(err, syscall.EAGAIN), err == nil && n <= 0:
		return 0, io.EOF
	case err != nil:
		return 0, err
	}
	return n, nil
}

// isPseudo tells file systems whose sizes mean nothing.
func isPseudo(fd int) bool {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &fs); err != nil {
		return false
	}
	switch uint32(fs.Type) {
	case 0x9fa0, // proc
		0x62656572,           // sysfs
		0x27e0eb, 0x63677270, // cgroup, cgroup2
		0x64626720, 0x74726163, // debugfs, tracefs
		0x73636673, 0x6165676c, // securityfs, pstore
		0x62656570, 0xcafe4a11: // configfs, bpf
		return true
	}
	return false
}

// copyOut copies to the caller in large steps. sendfile would save one copy of two, on TCP only; the sandbox's
// daemon mostly speaks over a unix socket, and 5 GB/s are enough there.
func copyOut(w io.Writer, from io.Reader) (int64, error) {
	buffer := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{from}, *buffer)
}
