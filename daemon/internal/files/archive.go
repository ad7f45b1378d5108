package files

// GET of a folder as a tar stream. Once the first byte is out no status can tell of an error any more, so
// the tree is first walked without its contents: what cannot be read is refused while it still can be. What
// goes wrong later cuts the connection, and the archive has no end mark: nobody takes it for whole.

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	// maxHardLinks is how many files with several names are remembered; others are stored once a name.
	maxHardLinks = 100_000
	// skippedHeader tells how many sockets and devices the archive leaves out.
	skippedHeader = "X-Sandman-Skipped"
)

type fileID struct{ dev, ino uint64 }

// packing is one walk over the folder: without an archive it only tries what the real one will need.
type packing struct {
	ctx     context.Context
	archive *tar.Writer // nil: trying
	linked  map[fileID]string
	skipped int // sockets and devices: there is nothing to store of them
}

func (h *Handler) pack(w http.ResponseWriter, r *http.Request) error {
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
	full := trimSlashes(absolute(h.options.DefaultDir, path))
	begun := false
	r.Context().Done() // the trial writes nothing: only this tells it that the caller went away
	err = as.do(func() error {
		fd, err := openDirectory(atFDCWD, full, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		trial := packing{ctx: r.Context()}
		if err := trial.folder(fd, full, "", 0); err != nil {
			return err
		}
		begun = true
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set(skippedHeader, strconv.Itoa(trial.skipped))
		w.WriteHeader(http.StatusOK)
		out := bufio.NewWriterSize(w, copyBytes)
		real := packing{ctx: r.Context(), archive: tar.NewWriter(out), linked: map[fileID]string{}}
		err = real.folder(fd, full, "", 0)
		if err == nil {
			err = errors.Join(real.archive.Close(), out.Flush())
		}
		return err
	})
	if err != nil && begun {
		panic(http.ErrAbortHandler)
	}
	return failed(err, full)
}

func (p *packing) folder(fd int, path, prefix string, level int) error {
	if level > maxDepth {
		return tooDeep(path)
	}
	pseudo := isPseudo(fd)
	return eachName(fd, "", batchNames, func(name string) error {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		err := p.entry(fd, name, path+"/"+name, prefix+name, pseudo, level)
		if errors.Is(err, syscall.ENOENT) {
			return nil // it vanished meanwhile
		}
		return failed(err, path+"/"+name)
	})
}

func (p *packing) entry(dir int, name, path, member string, pseudo bool, level int) error {
	st, err := statat(dir, name, atSymlinkNofollow)
	if err != nil {
		return err
	}
	header := &tar.Header{
		Name: member, Mode: int64(st.Mode) & 0o7777, Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(int64(st.Mtim.Sec), 0), // whole seconds: sooner than rounded up into the future
	}
	switch typeName(uint32(st.Mode)) {
	case "directory":
		header.Typeflag, header.Name = tar.TypeDir, member+"/"
		child, err := openDirectory(dir, name, syscall.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer syscall.Close(child)
		if err := p.write(header); err != nil {
			return err
		}
		return p.folder(child, path, member+"/", level+1)
	case "symlink":
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = readlinkat(dir, name); err != nil {
			return err
		}
		return p.write(header)
	case "fifo":
		header.Typeflag = tar.TypeFifo
		return p.write(header)
	case "file":
		return p.file(dir, name, member, header, pseudo)
	}
	p.skipped++
	return nil
}

func (p *packing) file(dir int, name, member string, header *tar.Header, pseudo bool) error {
	fd, err := openat(dir, name, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	if p.archive == nil {
		return syscall.Close(fd)
	}
	st, err := fstat(fd)
	if err == nil {
		err = regularOnly(st, member)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return err
	}
	id := fileID{uint64(st.Dev), st.Ino}
	if st.Nlink > 1 {
		if first, seen := p.linked[id]; seen {
			_ = syscall.Close(fd)
			header.Typeflag, header.Linkname = tar.TypeLink, first
			return p.write(header)
		}
		if len(p.linked) < maxHardLinks {
			p.linked[id] = member
		}
	}
	header.Typeflag, header.Size = tar.TypeReg, st.Size
	if pseudo || st.Size == 0 { // sizes of /proc and /sys mean nothing: gather what there is
		defer syscall.Close(fd)
		content, err := readPseudo(pseudoReader{fd})
		if err != nil {
			return err
		}
		header.Size = int64(len(content))
		if err := p.write(header); err != nil {
			return err
		}
		_, err = p.archive.Write(content)
		return err
	}
	_ = syscall.SetNonblock(fd, false)
	file := os.NewFile(uintptr(fd), member)
	defer file.Close()
	if err := p.write(header); err != nil {
		return err
	}
	buffer := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buffer)
	// Longer now than when it was opened: the rest is not part of it. Shorter: io.EOF, and no archive.
	copied, err := io.CopyBuffer(struct{ io.Writer }{p.archive}, struct{ io.Reader }{io.LimitReader(file, st.Size)}, *buffer)
	if err == nil && copied < st.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (p *packing) write(header *tar.Header) error {
	if p.archive == nil {
		return nil
	}
	return p.archive.WriteHeader(header)
}
