package files

// Moving between file systems: a copy that takes its name at the end, then the removal of the source.
// Overlay roots need it within one sandbox, for they keep folders of the image on another layer.

import (
	"context"
	"errors"
	"net/http"
	"os"
	"syscall"

	"sandman.dev/daemon/internal/problem"
)

func moveAcross(ctx context.Context, from string, place *target, overwrite bool) error {
	if !overwrite {
		if _, err := statat(place.dir, place.name, atSymlinkNofollow); err == nil {
			return syscall.EEXIST
		}
	}
	temporary := temporaryName()
	err := copyTree(ctx, atFDCWD, from, place.dir, temporary, 0)
	if err == nil {
		flags := renameNoReplace
		if overwrite {
			flags = 0
		}
		if err = renameat2(place.dir, temporary, place.dir, place.name, flags); errors.Is(err, syscall.EINVAL) && flags != 0 {
			err = renameat2(place.dir, temporary, place.dir, place.name, 0)
		}
	}
	if err != nil {
		_ = removeTree(place.dir, temporary, 0)
		return err
	}
	return os.RemoveAll(from)
}

// removeTree removes an entry that only this call knows of.
func removeTree(dir int, name string, level int) error {
	err := unlinkat(dir, name, 0)
	if !errors.Is(err, syscall.EISDIR) || level > maxDepth {
		return err
	}
	fd, err := openDirectory(dir, name, syscall.O_NOFOLLOW)
	if err != nil {
		return err
	}
	_ = eachName(fd, "", batchNames, func(child string) error { return removeTree(fd, child, level+1) })
	_ = syscall.Close(fd)
	return unlinkat(dir, name, atRemoveDir)
}

// copyTree copies one entry with mode, times, links and, where the rights allow, owners.
func copyTree(ctx context.Context, fromDir int, from string, toDir int, to string, level int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if level > maxDepth {
		return tooDeep(from)
	}
	st, err := statat(fromDir, from, atSymlinkNofollow)
	if err != nil {
		return err
	}
	mode := uint32(st.Mode) & 0o7777
	switch typeName(uint32(st.Mode)) {
	case "file":
		return copyFile(fromDir, from, toDir, to)
	case "symlink":
		link, err := readlinkat(fromDir, from)
		if err != nil {
			return err
		}
		if err := symlinkat(link, toDir, to); err != nil {
			return err
		}
		_ = syscall.Fchownat(toDir, to, int(st.Uid), int(st.Gid), atSymlinkNofollow)
		return setTimes(toDir, to, st.Mtim)
	case "fifo":
		if err := mkfifoat(toDir, to, mode&0o777); err != nil {
			return err
		}
		return setTimes(toDir, to, st.Mtim)
	case "directory":
		if err := mkdirat(toDir, to, 0o700); err != nil {
			return err
		}
		source, err := openDirectory(fromDir, from, syscall.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer syscall.Close(source)
		copied, err := openDirectory(toDir, to, syscall.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer syscall.Close(copied)
		err = eachName(source, "", batchNames, func(name string) error {
			return copyTree(ctx, source, name, copied, name, level+1)
		})
		if err == nil {
			err = dressLike(copied, st)
		}
		return err
	}
	return specialFile(typeName(uint32(st.Mode)), from)
}

func copyFile(fromDir int, from string, toDir int, to string) error {
	source, err := openat(fromDir, from, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	reader := os.NewFile(uintptr(source), from)
	defer reader.Close()
	st, err := fstat(source)
	if err != nil {
		return err
	}
	if err := regularOnly(st, from); err != nil {
		return err
	}
	copied, err := openat(toDir, to, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	writer := os.NewFile(uintptr(copied), to)
	defer writer.Close()
	if _, err := writer.ReadFrom(reader); err != nil { // copy_file_range where the kernel can
		return err
	}
	return dressLike(copied, st)
}

func dressLike(fd int, st syscall.Stat_t) error {
	mode := uint32(st.Mode) & 0o7777
	if syscall.Fchown(fd, int(st.Uid), int(st.Gid)) != nil {
		mode &= 0o1777
	}
	if err := syscall.Fchmod(fd, mode); err != nil {
		return err
	}
	return setTimesOf(fd, st.Mtim)
}

func tooDeep(path string) error {
	return withPath(&problem.Problem{
		Slug: "too-deep", Title: "The folder is nested too deeply", Status: http.StatusConflict,
	}, path)
}
