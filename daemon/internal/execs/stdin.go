package execs

import (
	"os"
	"sync"
)

// StdinWindow is how many bytes of standard input may be under way to a command that does not read them.
const StdinWindow = 256 << 10

// Stdin feeds a command. Bytes are queued up to StdinWindow and written as the command reads; when the command has
// closed its end the rest is taken and dropped, as a broken pipe would.
type Stdin struct {
	mu      sync.Mutex
	wake    *sync.Cond
	file    *os.File
	queue   [][]byte
	queued  int
	eof     bool
	closed  bool
	taken   int64       // bytes accepted ever
	written int64       // bytes the command's pipe took, or that were dropped behind its end
	credit  func(n int) // told when bytes have been written; called without the lock
	feeder  any         // whose credit is
	tty     bool
}

func newStdin() *Stdin {
	s := &Stdin{}
	s.wake = sync.NewCond(&s.mu)
	return s
}

// open gives the feed its target and starts to write.
func (s *Stdin) open(file *os.File, tty bool) {
	s.mu.Lock()
	closed := s.closed
	s.file, s.tty = file, tty
	s.mu.Unlock()
	if closed {
		file.Close()
		return
	}
	go s.pump()
}

// Write queues p, which the feed then owns; false when it is more than was allowed.
func (s *Stdin) Write(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.eof || s.closed {
		s.taken += int64(len(p))
		return true
	}
	if s.queued+len(p) > StdinWindow && s.queued > 0 {
		return false
	}
	s.taken += int64(len(p))
	s.queue = append(s.queue, p)
	s.queued += len(p)
	s.wake.Signal()
	return true
}

// EOF ends the input behind what is queued.
func (s *Stdin) EOF() {
	s.mu.Lock()
	s.eof = true
	s.wake.Signal()
	s.mu.Unlock()
}

// Taken is how many bytes were accepted so far: where a sender that lost its connection goes on.
func (s *Stdin) Taken() (taken int64, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken, s.queued
}

// OnCredit makes feeder the one who is told that bytes were written; the latest takes over.
func (s *Stdin) OnCredit(feeder any, f func(n int)) {
	s.mu.Lock()
	s.feeder, s.credit = feeder, f
	s.mu.Unlock()
}

// OffCredit stops telling feeder, unless another has taken over.
func (s *Stdin) OffCredit(feeder any) {
	s.mu.Lock()
	if s.feeder == feeder {
		s.feeder, s.credit = nil, nil
	}
	s.mu.Unlock()
}

// close ends the feed with its command.
func (s *Stdin) close() {
	s.mu.Lock()
	s.closed = true
	file := s.file
	s.queue, s.queued = nil, 0
	s.wake.Signal()
	s.mu.Unlock()
	if file != nil && !s.tty {
		file.Close() // also ends a write that is under way
	}
}

func (s *Stdin) pump() {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.eof && !s.closed {
			s.wake.Wait()
		}
		if s.closed {
			s.mu.Unlock()
			return
		}
		if len(s.queue) == 0 {
			s.closed = true
			s.mu.Unlock()
			if s.tty {
				_, _ = s.file.Write([]byte{4}) // end of file, as typed
			} else {
				s.file.Close()
			}
			return
		}
		p := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		_, err := s.file.Write(p)
		s.mu.Lock()
		s.queued -= len(p)
		s.written += int64(len(p))
		credit := s.credit
		if err != nil && !s.closed { // the command closed its end
			n := len(p)
			for _, rest := range s.queue {
				n += len(rest)
			}
			s.queue, s.queued, s.closed = nil, 0, true
			s.mu.Unlock()
			if !s.tty {
				s.file.Close()
			}
			if credit != nil {
				credit(n)
			}
			return
		}
		s.mu.Unlock()
		if credit != nil {
			credit(len(p))
		}
	}
}
