package files

// The kernel's side of a watch: one inotify instance, and which watch descriptor is which folder.

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
)

const (
	// maxWatches bounds one watch's folders; the kernel's own bound is often 8,192 for all of a user.
	maxWatches = 8192
	watchMask  = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_CLOSE_WRITE | syscall.IN_ATTRIB | syscall.IN_DELETE |
		syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF
)

var errWatchLimit = errors.New("more folders than one watch may hold")

type inotify struct {
	fd        int
	file      *os.File // the same descriptor: package os waits for it without a thread
	recursive bool
	root      string
	paths     map[int32]string // by watch descriptor
}

// rawEvent is one record as the kernel wrote it.
type rawEvent struct {
	wd     int32
	mask   uint32
	cookie uint32
	name   string
}

func newInotify(root string, recursive bool) (*inotify, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &inotify{
		fd: fd, file: os.NewFile(uintptr(fd), "inotify"), recursive: recursive, root: root, paths: map[int32]string{},
	}, nil
}

func (n *inotify) close() { _ = n.file.Close() }

// add watches path, and with recursive every folder below; found is told what lies in new folders, so that
// nothing made between their creation and their watch is missed.
func (n *inotify) add(path string, level int, found func(path string, folder bool)) error {
	flags := uint32(watchMask)
	if level > 0 {
		flags |= syscall.IN_ONLYDIR | syscall.IN_DONT_FOLLOW
	}
	if len(n.paths) >= maxWatches {
		return errWatchLimit
	}
	wd, err := syscall.InotifyAddWatch(n.fd, path, flags)
	if err != nil {
		return err
	}
	n.paths[int32(wd)] = path
	if !n.recursive && found == nil {
		return nil
	}
	fd, err := openDirectory(atFDCWD, path, 0)
	if err != nil {
		return nil // a file, or a folder that may be watched but not read
	}
	defer syscall.Close(fd)
	return eachName(fd, "", batchNames, func(name string) error {
		st, err := statat(fd, name, atSymlinkNofollow)
		if err != nil {
			return nil // it vanished; the kernel tells of it
		}
		child := strings.TrimRight(path, "/") + "/" + name
		folder := isType(st, syscall.S_IFDIR)
		if found != nil {
			found(child, folder)
		}
		if !folder || !n.recursive || level >= maxDepth {
			return nil
		}
		err = n.add(child, level+1, found)
		if errors.Is(err, errWatchLimit) || errors.Is(err, syscall.ENOSPC) {
			return errWatchLimit
		}
		return nil // one folder that may not be watched does not spoil the others
	})
}

// forget drops the watches of a folder that was moved away: its paths are no longer true.
func (n *inotify) forget(path string) {
	for wd, watched := range n.paths {
		if watched == path || strings.HasPrefix(watched, path+"/") {
			_, _ = syscall.InotifyRmWatch(n.fd, uint32(wd))
			delete(n.paths, wd)
		}
	}
}

// parseEvents splits what one read returned; a record that does not fit is left out.
func parseEvents(buffer []byte) []rawEvent {
	var events []rawEvent
	for len(buffer) >= syscall.SizeofInotifyEvent {
		event := rawEvent{
			wd:     int32(binary.NativeEndian.Uint32(buffer)),
			mask:   binary.NativeEndian.Uint32(buffer[4:]),
			cookie: binary.NativeEndian.Uint32(buffer[8:]),
		}
		length := int(binary.NativeEndian.Uint32(buffer[12:]))
		buffer = buffer[syscall.SizeofInotifyEvent:]
		if length > len(buffer) {
			break
		}
		event.name, _, _ = strings.Cut(string(buffer[:length]), "\x00")
		buffer = buffer[length:]
		events = append(events, event)
	}
	return events
}
