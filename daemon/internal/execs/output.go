package execs

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"sandman.dev/daemon/internal/spool"
)

// readBytes is one read of a pipe: its default capacity, so that one read empties it.
const readBytes = 64 << 10

var readBuffers = sync.Pool{New: func() any { b := make([]byte, readBytes); return &b }}

// Output moves one stream of a command from its pipe or terminal into its spool.
//
// Reading and appending happen under one lock, so that the end of the command can be pinned: what the pipe holds
// when the command has ended, and no more, is still the command's own.
type Output struct {
	Spool *spool.Spool

	mu       sync.Mutex
	frozen   bool         // the command has ended: what comes now is its leftovers'
	late     *spool.Spool // theirs, kept apart so that it never displaces the command's own
	budget   *spool.Budget
	file     *os.File
	raw      syscall.RawConn
	tty      bool
	closed   bool
	released bool
	guard    *os.File // our own write end of a FIFO, which keeps it from ending before its command has opened it
}

// NewOutput begins a stream without a source.
func NewOutput(options spool.Options) *Output {
	return &Output{Spool: spool.New(options), budget: options.Budget, closed: true}
}

// lateBytes are kept of what leftovers of an ended command write.
const lateBytes = 128 << 10

// Late is what came after the command's end; nil: nothing yet.
func (o *Output) Late() *spool.Spool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.late
}

// Release gives up all bytes that are kept, and those to come.
func (o *Output) Release() {
	o.Spool.Release()
	o.mu.Lock()
	o.released = true
	late := o.late
	o.mu.Unlock()
	if late != nil {
		late.Release()
	}
}

// Open gives the stream its source, a non-blocking descriptor, and begins to read. guard is closed with the command's end.
func (o *Output) Open(fd int, tty bool, guard *os.File) error {
	file := os.NewFile(uintptr(fd), "output")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	o.mu.Lock()
	o.file, o.raw, o.tty, o.guard, o.closed = file, raw, tty, guard, false
	o.mu.Unlock()
	go o.pump()
	return nil
}

// pump reads until the last writer is gone: whoever still holds the pipe is never blocked or killed by it.
func (o *Output) pump() {
	for {
		room := int(min(o.Spool.Room(), readBytes))
		more := false
		err := o.raw.Read(func(fd uintptr) bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			n, state := o.take(int(fd), room)
			more = n > 0
			return state != wouldBlock
		})
		if err != nil || !more {
			o.finish()
			return
		}
	}
}

type readState byte

const (
	gotBytes readState = iota
	wouldBlock
	ended
)

// take reads once, at most limit bytes, into the spool. The caller holds the lock.
func (o *Output) take(fd, limit int) (int, readState) {
	if o.closed {
		return 0, ended
	}
	buffer := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buffer)
	for {
		n, err := syscall.Read(fd, (*buffer)[:min(limit, readBytes)])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, wouldBlock
		case err != nil || n <= 0: // EIO is how a terminal ends
			o.closed = true
			return 0, ended
		}
		if !o.frozen {
			o.Spool.Append((*buffer)[:n])
			return n, gotBytes
		}
		if o.late == nil {
			o.late = spool.New(spool.Options{MemBytes: lateBytes, Budget: o.budget})
			if o.released {
				o.late.Release() // nobody is left who would give it up later
			}
		}
		o.late.Append((*buffer)[:n])
		return n, gotBytes
	}
}

// Pending says how many bytes wait in the pipe.
func (o *Output) Pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0
	}
	return o.pending()
}

func (o *Output) pending() (n int) {
	_ = o.raw.Control(func(fd uintptr) {
		var count int32
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&count))); errno == 0 {
			n = int(count)
		}
	})
	return n
}

// ttyDrain bounds the wait for a terminal's last output, which the kernel hands over in the background.
const ttyDrain = 500 * time.Millisecond

// Drain takes what the command wrote before its end and pins the stream's end there. It never waits for writers.
func (o *Output) Drain() int64 {
	o.mu.Lock()
	if o.tty {
		for end := time.Now().Add(ttyDrain); !o.closed && time.Now().Before(end); {
			o.mu.Unlock()
			time.Sleep(time.Millisecond) // the pump reads on; the hang-up of the terminal ends it
			o.mu.Lock()
		}
	}
	if !o.closed {
		left := o.pending()
		_ = o.raw.Control(func(fd uintptr) {
			for left > 0 {
				n, state := o.take(int(fd), left)
				if state != gotBytes {
					return
				}
				left -= n
			}
		})
	}
	end := o.Spool.Freeze()
	o.frozen = true
	closed, guard := o.closed, o.guard
	o.guard = nil
	o.mu.Unlock()
	if guard != nil {
		guard.Close()
	}
	if closed {
		o.finish()
	}
	return end
}

// finish closes the source; it may be called more than once.
func (o *Output) finish() {
	o.mu.Lock()
	o.closed = true
	file, late := o.file, o.late
	o.file = nil
	o.mu.Unlock()
	if file != nil {
		file.Close()
	}
	o.Spool.Finish()
	if late != nil {
		late.Finish()
	}
}
