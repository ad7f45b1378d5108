package files

// Reading directories of any size in bounded memory and in one order. The kernel's order changes between
// two reads, so it cannot be paged through; the order of the names can.

import (
	"slices"
	"syscall"
)

const (
	// batchNames of a directory are held at once: below, big directories are re-read too often (100,000
	// entries cost 25 ms a reading); above, a deep tree of big directories costs memory at every level.
	batchNames = 4096
	// maxDepth bounds descriptors and memory: one directory is open for each level.
	maxDepth = 256
)

func openDirectory(dir int, name string, flags int) (int, error) {
	return openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK|flags, 0)
}

// readNames visits all names in a directory once, in the kernel's order, from the start.
func readNames(fd int, visit func(name string)) error {
	if _, err := syscall.Seek(fd, 0, 0); err != nil {
		return err
	}
	buffer := make([]byte, 32<<10)
	var names []string
	for {
		var n int
		err := retryErr(func() (err error) { n, err = syscall.ReadDirent(fd, buffer); return err })
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		_, _, names = syscall.ParseDirent(buffer[:n], -1, names[:0])
		for _, name := range names {
			visit(name)
		}
	}
}

// namesAfter returns the first names, in byte order, that come after one; more tells whether others follow.
func namesAfter(fd int, after string, most int) (names []string, more bool, err error) {
	prune := func() {
		slices.Sort(names)
		if len(names) > most {
			names, more = names[:most], true
		}
	}
	err = readNames(fd, func(name string) {
		if name <= after {
			return
		}
		if names = append(names, name); len(names) >= 2*most {
			prune()
		}
	})
	if err == syscall.ENOENT || err == syscall.ESRCH { // removed while it is open; /proc of a process that ended
		err = nil
	}
	prune()
	return names, more, err
}

// eachName visits the names after one in byte order, however many there are.
func eachName(fd int, after string, most int, visit func(name string) error) error {
	names, more, err := namesAfter(fd, after, most)
	if err != nil {
		return err
	}
	return eachNameFrom(fd, names, more, most, visit)
}

// eachNameFrom is eachName for one who has read the first batch already.
func eachNameFrom(fd int, names []string, more bool, most int, visit func(name string) error) error {
	for {
		for _, name := range names {
			if err := visit(name); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		var err error
		if names, more, err = namesAfter(fd, names[len(names)-1], most); err != nil {
			return err
		}
	}
}
