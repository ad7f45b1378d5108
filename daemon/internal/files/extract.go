package files

// PUT of a tar stream into a folder. Every member is resolved by the kernel beneath the folder's
// descriptor, so neither names nor links, whether they come from the archive, lay there before or are
// swapped in during the work, lead a write outside. Each member appears whole or not at all; the archive
// as a whole is not atomic, and a failure says how many members are in place.

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/problem"
)

// maxLateFolders is how many folders get their mode and time back after their contents came; for those
// beyond, the mode is set at once and the time is that of the extraction.
const maxLateFolders = 50_000

type lateFolder struct {
	parts []string
	mode  uint32
	mtime time.Time
}

type extraction struct {
	root    int
	path    string
	owner   *Identity
	noLinks bool  // the kernel cannot resolve beneath
	limit   int64 // of the unpacked content; 0: none
	fileMax int64
	bytes   int64
	members int
	late    []lateFolder
	// The folder of the last member: archives come sorted, and most members need no second look-up.
	folderPath string
	folderFD   int
}

func (h *Handler) unpack(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.RawQuery, "path", "user", "owner", "parents")
	if err != nil {
		return err
	}
	path, err := q.path("path")
	if err != nil {
		return err
	}
	owner, err := h.ownerOf(q)
	if err != nil {
		return err
	}
	parents, err := q.flag("parents", true)
	if err != nil {
		return err
	}
	as, err := h.rightsOf(q["user"])
	if err != nil {
		return err
	}
	full := trimSlashes(absolute(h.options.DefaultDir, path))
	x := &extraction{path: full, owner: owner, noLinks: h.options.withoutOpenat2, limit: h.options.MaxArchiveBytes, fileMax: h.options.MaxFileBytes, folderFD: -1}
	err = as.do(func() error {
		dir, missing, err := openFolder(full, parents)
		if err != nil {
			return err
		}
		place := &target{dir: dir, missing: missing}
		defer place.close()
		if err := place.makeMissing(owner); err != nil {
			return err
		}
		x.root = place.dir
		defer x.leaveFolder()
		return x.all(h, w, r)
	})
	if err != nil {
		return failed(err, full)
	}
	text, b64 := pathText(full)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Path    string `json:"path"`
		PathB64 string `json:"path_b64,omitempty"`
		Members int    `json:"members"`
		Bytes   int64  `json:"bytes"`
	}{text, b64, x.members, x.bytes})
	return nil
}

func (x *extraction) all(h *Handler, w http.ResponseWriter, r *http.Request) error {
	body := &boundedBody{body: r.Body, control: http.NewResponseController(w), idle: h.options.BodyIdleTimeout, path: x.path}
	defer body.finish()
	archive := tar.NewReader(body)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return x.broken(err)
		}
		if err := x.member(header, archive); err != nil {
			return x.failedMember(err, header.Name)
		}
		x.members++
	}
	if x.members == 0 && body.total == 0 {
		return x.broken(errors.New("the body is empty: an empty archive has 1024 zero bytes"))
	}
	if err := x.finishFolders(); err != nil {
		return err
	}
	// What pads the last record; more than that is no padding, and the connection is not worth keeping.
	_, err := io.CopyN(io.Discard, body, 1<<20)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

func (x *extraction) broken(err error) error {
	p := &problem.Problem{
		Slug: "bad-archive", Title: "That is no complete tar archive", Status: http.StatusUnprocessableEntity, Detail: err.Error(),
	}
	var typed *problem.Problem
	if errors.As(err, &typed) {
		p = typed
	}
	return p.With("members_extracted", x.members)
}

func (x *extraction) failedMember(err error, name string) error {
	p := problem.Of(failed(err, x.path+"/"+name))
	text, b64 := pathText(name)
	p.With("member", text).With("members_extracted", x.members)
	if b64 != "" {
		p.With("member_b64", b64)
	}
	return p
}

func escaping(why string) error {
	return &problem.Problem{
		Slug: "escaping-member", Title: "A member leads outside the folder", Status: http.StatusUnprocessableEntity, Detail: why,
	}
}

func refusedMember(kind string) error {
	return (&problem.Problem{
		Slug: "unsupported-member", Title: "A member of that type is not extracted", Status: http.StatusUnprocessableEntity,
		Detail: kind,
	}).With("member_type", kind)
}

// memberParts splits a member's name; nil for the folder itself.
func memberParts(name string) ([]string, error) {
	if strings.HasPrefix(name, "/") {
		return nil, escaping("its name is absolute")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, escaping(`its name holds ".."`)
		case strings.ContainsRune(part, 0):
			return nil, problem.Invalid("archive", "a name holds a NUL byte")
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > maxDepth {
		return nil, tooDeep(name)
	}
	return parts, nil
}

func (x *extraction) member(header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, err := memberParts(header.Name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		if header.Typeflag != tar.TypeDir {
			return problem.Invalid("archive", "a member has no name")
		}
		return nil // the folder itself stays as it is
	}
	folder, name := parts[:len(parts)-1], parts[len(parts)-1]
	dir, err := x.enterFolder(folder)
	if err != nil {
		return err
	}
	mode := uint32(header.Mode) & 0o7777
	modified := syscall.NsecToTimespec(header.ModTime.UnixNano())
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse:
		return x.file(dir, name, header.Size, mode, modified, content)
	case tar.TypeDir:
		return x.makeDirectory(dir, parts, mode, header.ModTime)
	case tar.TypeSymlink:
		if err := checkPath("archive", header.Linkname); err != nil {
			return err
		}
		return replaceBy(dir, name, func(name string) error {
			if err := symlinkat(header.Linkname, dir, name); err != nil {
				return err
			}
			return errors.Join(x.giveAway(dir, name), setTimes(dir, name, modified))
		})
	case tar.TypeLink:
		return x.hardLink(dir, name, header.Linkname)
	case tar.TypeFifo:
		return replaceBy(dir, name, func(name string) error {
			if err := mkfifoat(dir, name, mode&0o777); err != nil {
				return err
			}
			return errors.Join(x.giveAway(dir, name), setTimes(dir, name, modified))
		})
	case tar.TypeChar, tar.TypeBlock:
		return refusedMember("device")
	}
	return refusedMember("type " + string(rune(header.Typeflag)))
}

func (x *extraction) giveAway(dir int, name string) error {
	if x.owner == nil {
		return nil
	}
	return syscall.Fchownat(dir, name, int(x.owner.UID), int(x.owner.GID), atSymlinkNofollow)
}

func (x *extraction) file(dir int, name string, size int64, mode uint32, modified syscall.Timespec, content io.Reader) error {
	if x.fileMax > 0 && size > x.fileMax {
		return tooLarge(x.fileMax, name)
	}
	if x.bytes += size; x.limit > 0 && x.bytes > x.limit {
		return tooLarge(x.limit, x.path)
	}
	return replaceBy(dir, name, func(name string) error {
		fd, err := openat(dir, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		err = fill(fd, content)
		if err == nil && x.owner != nil {
			err = syscall.Fchown(fd, int(x.owner.UID), int(x.owner.GID))
		}
		if err == nil {
			err = syscall.Fchmod(fd, mode)
		}
		if err == nil {
			err = setTimesOf(fd, modified)
		}
		if err != nil {
			_ = unlinkat(dir, name, 0)
		}
		return err
	})
}

type descriptor int

func (d descriptor) Write(content []byte) (int, error) {
	return len(content), writeAll(int(d), content)
}

func fill(fd int, content io.Reader) error {
	buffer := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buffer)
	_, err := io.CopyBuffer(descriptor(fd), struct{ io.Reader }{content}, *buffer)
	var typed *problem.Problem
	if errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, &typed) {
		err = &problem.Problem{Slug: "bad-archive", Title: "That is no complete tar archive",
			Status: http.StatusUnprocessableEntity, Detail: "it ends within a member"}
	}
	return err
}

func (x *extraction) hardLink(dir int, name, linked string) error {
	parts, err := memberParts(linked)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return escaping("it links to the folder itself")
	}
	from, err := x.beneath(parts[:len(parts)-1], oPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer syscall.Close(from)
	return replaceBy(dir, name, func(name string) error {
		return linkat(from, parts[len(parts)-1], dir, name, 0) // a link there is linked to, never followed
	})
}

func (x *extraction) makeDirectory(dir int, parts []string, mode uint32, modified time.Time) error {
	name := parts[len(parts)-1]
	err := mkdirat(dir, name, 0o700)
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return err
	}
	fd, err := x.beneath(parts, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if x.owner != nil {
		if err := syscall.Fchown(fd, int(x.owner.UID), int(x.owner.GID)); err != nil {
			return err
		}
	}
	if len(x.late) < maxLateFolders {
		x.late = append(x.late, lateFolder{parts, mode, modified})
		mode |= 0o700 // until its contents are in
	}
	return syscall.Fchmod(fd, mode)
}

// finishFolders runs backwards: setting a folder's contents in place changes its time.
func (x *extraction) finishFolders() error {
	for i := len(x.late) - 1; i >= 0; i-- {
		folder := x.late[i]
		fd, err := x.beneath(folder.parts, syscall.O_RDONLY|syscall.O_DIRECTORY)
		if errors.Is(err, syscall.ENOENT) {
			continue
		}
		if err == nil {
			err = syscall.Fchmod(fd, folder.mode)
			if err == nil {
				err = setTimesOf(fd, syscall.NsecToTimespec(folder.mtime.UnixNano()))
			}
			_ = syscall.Close(fd)
		}
		if err != nil {
			return failed(err, x.path+"/"+strings.Join(folder.parts, "/"))
		}
	}
	return nil
}
