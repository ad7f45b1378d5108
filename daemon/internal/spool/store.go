package spool

import (
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// chunkBytes is the unit in which memory is taken for output past its first kilobytes.
const chunkBytes = 64 << 10

// store keeps bytes at positions; the spool decides which byte of the stream lives at which position.
type store interface {
	writeAt(p []byte, position int64) error
	readAt(p []byte, position int64) error
	bytes() int64 // held now, for the common bound
	close()
}

// memory is a sparse array of chunks; the first one grows from small, as most commands print little.
type memory struct {
	chunks [][]byte
	held   int64
}

func (m *memory) writeAt(p []byte, position int64) error {
	for len(p) > 0 {
		index, offset := int(position/chunkBytes), int(position%chunkBytes)
		for index >= len(m.chunks) {
			m.chunks = append(m.chunks, nil)
		}
		n := min(len(p), chunkBytes-offset)
		chunk := m.chunks[index]
		if end := offset + n; end > len(chunk) {
			if end > cap(chunk) {
				size := chunkBytes
				if index == 0 {
					size = min(chunkBytes, max(512, 2*cap(chunk), end))
				}
				grown := make([]byte, len(chunk), size)
				copy(grown, chunk)
				m.held += int64(size - cap(chunk))
				chunk = grown
			}
			chunk = chunk[:end]
			m.chunks[index] = chunk
		}
		copy(chunk[offset:], p[:n])
		p, position = p[n:], position+int64(n)
	}
	return nil
}

func (m *memory) readAt(p []byte, position int64) error {
	for len(p) > 0 {
		index, offset := int(position/chunkBytes), int(position%chunkBytes)
		if index >= len(m.chunks) || offset >= len(m.chunks[index]) {
			return errors.New("spool: read of what was never written")
		}
		n := copy(p, m.chunks[index][offset:])
		p, position = p[n:], position+int64(n)
	}
	return nil
}

func (m *memory) bytes() int64 { return m.held }
func (m *memory) close()       { m.chunks, m.held = nil, 0 }

// disk is a file without a name: it is gone with the daemon, and no command can open it.
type disk struct {
	file *os.File
	held int64
}

var fileSequence atomic.Int64

func newDisk(dir string) (*disk, error) {
	const oTmpfile = 0o20200000 // O_TMPFILE | O_DIRECTORY
	if fd, err := syscall.Open(dir, oTmpfile|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600); err == nil {
		return &disk{file: os.NewFile(uintptr(fd), "spool")}, nil
	}
	name := dir + "/.sandmand-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(fileSequence.Add(1), 10)
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(name); err != nil {
		file.Close()
		return nil, err
	}
	return &disk{file: file}, nil
}

func (d *disk) writeAt(p []byte, position int64) error {
	if _, err := d.file.WriteAt(p, position); err != nil {
		return err
	}
	d.held = max(d.held, position+int64(len(p)))
	return nil
}

func (d *disk) readAt(p []byte, position int64) error {
	_, err := d.file.ReadAt(p, position)
	return err
}

func (d *disk) bytes() int64 { return d.held }
func (d *disk) close()       { d.file.Close() }
