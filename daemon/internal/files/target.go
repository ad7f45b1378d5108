package files

// Where an upload goes: the entry it will replace or make, found once and then held by descriptor.

import (
	"strings"
	"syscall"

	"sandman.dev/daemon/internal/problem"
)

// maxLinks is the kernel's own bound on links followed in one path.
const maxLinks = 40

// target is a name in a folder. While folders on the way are missing, dir is the deepest one that exists.
type target struct {
	path    string // as told to the caller: absolute, links at its end followed
	dir     int    // O_PATH descriptor
	earlier []int  // what dir was before the missing folders were made; a staging file may lie there
	missing []string
	name    string
	exists  bool
	st      syscall.Stat_t // of what exists
	pseudo  bool           // on /proc, /sys and their like, where a write is a command, not content
}

func (t *target) close() {
	for _, dir := range append(t.earlier, t.dir) {
		_ = syscall.Close(dir)
	}
}

// findTarget resolves path for writing, as cp does: a link at the end is followed, so that it stays a link
// and the file it leads to gets the content.
func findTarget(path string, parents bool) (*target, error) {
	for range maxLinks {
		folder, name := splitLast(path)
		if name == "" {
			return nil, syscall.EISDIR
		}
		if len(name) > 255 { // told before the folders on the way are made for nothing
			return nil, syscall.ENAMETOOLONG
		}
		dir, missing, err := openFolder(folder, parents)
		if err != nil {
			return nil, err
		}
		found := &target{path: path, dir: dir, missing: missing, name: name}
		if len(missing) > 0 {
			return found, nil
		}
		found.st, err = statat(dir, name, atSymlinkNofollow)
		switch {
		case err == syscall.ENOENT:
			return found, nil
		case err != nil:
			found.close()
			return nil, err
		case !isType(found.st, syscall.S_IFLNK):
			found.exists = true
			if err := found.checkWritable(); err != nil {
				found.close()
				return nil, err
			}
			return found, nil
		}
		link, err := readlinkat(dir, name)
		found.close()
		if err != nil {
			return nil, err
		}
		path = absolute(folder, link)
	}
	return nil, syscall.ELOOP
}

// checkWritable applies the rights that writing into the file would need: replacing it by rename asks
// only for those of its folder, and would let a user overwrite what they may not write.
func (t *target) checkWritable() error {
	if err := regularOnly(t.st, t.path); err != nil {
		return err
	}
	fd, err := openat(t.dir, t.name, oPath|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	t.pseudo = isPseudo(fd)
	_ = syscall.Close(fd)
	err = mayWrite(t.dir, t.name)
	if err == syscall.ENOSYS || err == syscall.EPERM { // the kernel does not know, or a seccomp filter does not
		if fd, err = openat(t.dir, t.name, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0); err == nil {
			_ = syscall.Close(fd)
		}
	}
	if err == syscall.ETXTBSY {
		return nil // a running program cannot be written, but it can be replaced
	}
	return err
}

// openFolder opens a folder without needing read permission. With parents, what is missing at the end of
// its path is returned by name instead, and is made only once the upload is complete.
func openFolder(path string, parents bool) (dir int, missing []string, err error) {
	for {
		dir, err = openat(atFDCWD, path, oPath|syscall.O_DIRECTORY, 0)
		if err != syscall.ENOENT || !parents {
			return dir, missing, err
		}
		trimmed := strings.TrimRight(path, "/")
		cut := strings.LastIndexByte(trimmed, '/')
		last := trimmed[cut+1:]
		if cut < 0 || last == "" {
			return dir, missing, err
		}
		if len(last) > 255 {
			return -1, nil, syscall.ENAMETOOLONG
		}
		path = trimmed[:cut+1]
		if last != "." {
			missing = append([]string{last}, missing...)
		}
	}
}

// makeMissing makes the folders on the way; t.dir is then the folder that holds the name.
func (t *target) makeMissing(owner *Identity) error {
	for _, name := range t.missing {
		next, err := makeFolder(t.dir, name, 0o755, owner)
		if err != nil {
			return err
		}
		if len(t.earlier) == 0 {
			t.earlier = []int{t.dir}
		} else {
			_ = syscall.Close(t.dir)
		}
		t.dir = next
	}
	t.missing = nil
	return nil
}

// makeFolder makes one folder, with exactly that mode whatever the umask, or opens the one that is there.
func makeFolder(dir int, name string, mode uint32, owner *Identity) (int, error) {
	err := mkdirat(dir, name, mode|0o700)
	if err == syscall.EEXIST {
		return openat(dir, name, oPath|syscall.O_DIRECTORY, 0) // a link to a folder is one, too
	}
	if err != nil {
		return -1, err
	}
	made, err := openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	if owner != nil {
		err = syscall.Fchown(made, int(owner.UID), int(owner.GID))
	}
	if err == nil {
		err = keepSetgid(made, mode)
	}
	if err != nil {
		_ = syscall.Close(made)
		return -1, err
	}
	return made, nil
}

// keepSetgid sets a new folder's mode, but leaves the setgid bit that it inherited from its parent.
func keepSetgid(fd int, mode uint32) error {
	st, err := fstat(fd)
	if err != nil {
		return err
	}
	return syscall.Fchmod(fd, mode|uint32(st.Mode)&syscall.S_ISGID)
}

func tooLarge(limit int64, path string) error {
	return withPath((&problem.Problem{
		Slug: "too-large", Title: "The file is too large", Status: 413, Detail: "nothing was stored",
	}).With("limit_bytes", limit), path)
}
