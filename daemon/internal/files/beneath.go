package files

// Walking beneath an archive's folder. openat2 lets the kernel refuse, in one step that nothing can race, any
// way that leaves the folder; where it is missing no link is followed at all, which is safe and a little less.

import (
	"errors"
	"strings"
	"syscall"
)

func (x *extraction) leaveFolder() {
	if x.folderFD >= 0 {
		_ = syscall.Close(x.folderFD)
		x.folderFD = -1
	}
}

// enterFolder opens the folder of a member, and makes what of it the archive did not list.
func (x *extraction) enterFolder(parts []string) (int, error) {
	path := strings.Join(parts, "/")
	if x.folderFD >= 0 && x.folderPath == path {
		return x.folderFD, nil
	}
	x.leaveFolder()
	fd, err := x.beneath(parts, oPath|syscall.O_DIRECTORY)
	if errors.Is(err, syscall.ENOENT) {
		fd, err = x.makeFolders(parts)
	}
	if err != nil {
		return -1, err
	}
	x.folderPath, x.folderFD = path, fd
	return fd, nil
}

func (x *extraction) makeFolders(parts []string) (int, error) {
	parent, err := x.beneath(nil, oPath|syscall.O_DIRECTORY)
	for i := range parts {
		if err != nil {
			return -1, err
		}
		next := -1
		if err = mkdirat(parent, parts[i], 0o700); err == nil {
			if next, err = openDirectory(parent, parts[i], syscall.O_NOFOLLOW); err == nil {
				if x.owner != nil {
					err = syscall.Fchown(next, int(x.owner.UID), int(x.owner.GID))
				}
				err = errors.Join(err, keepSetgid(next, 0o755))
			}
		} else if errors.Is(err, syscall.EEXIST) {
			next, err = x.beneath(parts[:i+1], oPath|syscall.O_DIRECTORY)
		}
		_ = syscall.Close(parent)
		if err != nil && next >= 0 {
			_ = syscall.Close(next)
		}
		parent = next
	}
	return parent, err
}

// beneath opens what parts name under the root, without ever leaving it.
func (x *extraction) beneath(parts []string, flags int) (int, error) {
	path := "."
	if len(parts) > 0 {
		path = strings.Join(parts, "/")
	}
	if x.noLinks {
		return x.withoutLinks(parts, flags)
	}
	fd, err := openBeneath(x.root, path, flags, 0)
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.ELOOP) {
		return -1, escaping("a link on its way leads out of the folder")
	}
	return fd, err
}

// withoutLinks is for kernels that cannot resolve beneath: it follows no link at all.
func (x *extraction) withoutLinks(parts []string, flags int) (int, error) {
	fd, err := openat(x.root, ".", oPath|syscall.O_DIRECTORY, 0)
	if err == nil && len(parts) == 0 && flags&oPath == 0 {
		parts = []string{"."}
	}
	for i, part := range parts {
		if err != nil {
			return -1, err
		}
		step := oPath | syscall.O_DIRECTORY
		if i == len(parts)-1 {
			step = flags
		}
		var next int
		next, err = openat(fd, part, step|syscall.O_NOFOLLOW, 0)
		if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
			if st, statErr := statat(fd, part, atSymlinkNofollow); statErr == nil && isType(st, syscall.S_IFLNK) {
				err = escaping("a link lies on its way, and this kernel cannot tell where it leads")
			}
		}
		_ = syscall.Close(fd)
		fd = next
	}
	return fd, err
}

// hasOpenat2: kernels before 5.6 answer ENOSYS, old seccomp filters EPERM.
func hasOpenat2() bool {
	fd, err := openBeneath(atFDCWD, ".", oPath|syscall.O_DIRECTORY, 0)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return !errors.Is(err, syscall.ENOSYS) && !errors.Is(err, syscall.EPERM)
}
