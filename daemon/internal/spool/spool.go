// Package spool keeps what a command wrote: every byte has an offset, counts are exact, and of a long stream
// the beginning and the end are kept and what lies between is told as a gap.
//
// Bytes live in memory first and then in a nameless file. When the file cannot be written (disk full, read-only
// root) the spool goes on in memory with less; the command never notices. Offsets map to positions so that head
// and tail share one store: the head lies where its offsets say, the tail is a ring behind it.
package spool

import (
	"errors"
	"sync"
)

const (
	// memoryBytes of one stream stay in memory before a file is used; most output never needs one.
	memoryBytes = 256 << 10
	// slackBytes of the tail are kept free of what a blocking reader has not had yet, so that the rest of a full
	// pipe (1 MiB at most) always fits when its command ends.
	slackBytes = 1 << 20
)

// ErrReleased: the bytes were given up to the common bound.
var ErrReleased = errors.New("the output is no longer kept")

// Options are one stream's bounds.
type Options struct {
	Dir       string // for a file; empty: none
	DiskBytes int64  // kept when in a file
	MemBytes  int64  // kept when in memory only
	Budget    *Budget
}

// Spool is one stream. All methods may be called from any goroutine.
type Spool struct {
	options Options

	mu                      sync.Mutex
	store                   store
	head                    int64 // capacity of the head
	tail                    int64 // capacity of the ring
	total                   int64 // bytes ever appended
	kept                    int64 // end of the head that is kept; the gap begins here
	from                    int64 // where the kept tail may begin at the earliest
	end                     int64 // the stream's end as its command left it; -1 while it runs
	finished                bool  // no byte will come any more
	released                bool
	noDisk                  bool
	chargedMem, chargedDisk int64
	subs                    map[*Sub]struct{}
	room                    *sync.Cond
}

// New returns an empty spool.
func New(options Options) *Spool {
	s := &Spool{options: options, end: -1}
	s.room = sync.NewCond(&s.mu)
	s.bound(options.MemBytes)
	if options.Dir != "" {
		s.bound(options.DiskBytes)
	}
	return s
}

func (s *Spool) bound(size int64) {
	size = max(size, 8<<10)
	s.tail = size / 2
	s.head = size - s.tail
}

// Append adds p to the stream. It never fails and never blocks on a reader.
func (s *Spool) Append(p []byte) {
	if len(p) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.released {
		s.put(p)
	}
	s.total += int64(len(p))
	if s.released {
		s.from = s.total
	} else if s.kept == s.total-int64(len(p)) && s.from == 0 { // the head is whole so far
		s.kept = min(s.total, s.head)
	}
	for sub := range s.subs {
		sub.notify()
	}
}

// put stores p at the stream's end, moving to a file or back to memory as needed.
func (s *Spool) put(p []byte) {
	if s.store == nil {
		s.store = &memory{}
	}
	if _, inMemory := s.store.(*memory); inMemory && s.options.Dir != "" && !s.noDisk && s.total+int64(len(p)) > memoryBytes {
		s.toDisk()
	}
	if s.options.Dir != "" && s.noDisk && s.head > s.options.MemBytes {
		s.toMemory()
	}
	if err := s.write(p); err != nil {
		s.noDisk = true
		s.toMemory()
		_ = s.write(p) // memory does not fail
	}
	s.charge()
}

func (s *Spool) write(p []byte) error {
	offset := s.total
	if over := int64(len(p)) - (s.head + s.tail); over > 0 && offset >= s.head {
		p, offset = p[over:], offset+over
	}
	for len(p) > 0 {
		position, run := s.locate(offset)
		n := min(run, int64(len(p)))
		if err := s.store.writeAt(p[:n], position); err != nil {
			return err
		}
		p, offset = p[n:], offset+n
	}
	return nil
}

// locate maps an offset to its position, and says how many bytes lie there in one run.
func (s *Spool) locate(offset int64) (position, run int64) {
	if offset < s.head {
		return offset, s.head - offset
	}
	in := (offset - s.head) % s.tail
	return s.head + in, s.tail - in
}

func (s *Spool) toDisk() {
	file, err := newDisk(s.options.Dir)
	if err != nil {
		s.noDisk = true
		return
	}
	kept := make([]byte, s.total) // at most memoryBytes, all of it in the head
	if s.store.readAt(kept, 0) != nil || file.writeAt(kept, 0) != nil {
		file.close()
		s.noDisk = true
		return
	}
	s.store.close()
	s.store = file
}

// toMemory goes on without a file: the beginning and the latest bytes move to memory, the middle is given up.
func (s *Spool) toMemory() {
	old := s.store
	oldHead, oldTail, oldKept, oldFrom := s.head, s.tail, s.kept, s.tailStart()
	s.bound(s.options.MemBytes)
	fresh := &memory{}
	copyRange := func(from, to int64) bool {
		buffer := make([]byte, chunkBytes)
		for from < to {
			position, run := from, oldHead-from
			if from >= oldHead {
				position = oldHead + (from-oldHead)%oldTail
				run = oldTail - (from-oldHead)%oldTail
			}
			target, room := s.locate(from)
			n := min(run, room, to-from, chunkBytes)
			if old.readAt(buffer[:n], position) != nil || fresh.writeAt(buffer[:n], target) != nil {
				return false
			}
			from += n
		}
		return true
	}
	s.kept = min(oldKept, s.head)
	if !copyRange(0, s.kept) {
		s.kept = 0
	}
	start := max(s.total-s.tail, s.head, 0)
	if s.total > s.kept {
		start = max(start, s.kept)
		if oldFrom > oldKept {
			start = max(start, oldFrom)
		}
		start = min(start, s.total)
		if !copyRange(start, s.total) {
			start = s.total
		}
		s.from = start
	}
	old.close()
	s.store = fresh
}

// tailStart is the first offset behind the gap; without a gap it equals kept or less.
func (s *Spool) tailStart() int64 {
	if s.total <= s.head && s.from == 0 {
		return s.kept
	}
	return max(s.total-s.tail, s.from, s.kept)
}

// Finish says that no byte will come any more.
func (s *Spool) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	if s.end < 0 {
		s.end = s.total
	}
	s.wake()
}

// Freeze marks the end of the command's own output: later bytes come from what it left behind.
func (s *Spool) Freeze() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end < 0 {
		s.end = s.total
	}
	s.wake()
	return s.end
}

func (s *Spool) wake() {
	for sub := range s.subs {
		sub.notify()
	}
	s.room.Broadcast()
}

// State is a spool's bounds at one moment: kept are [0, HeadEnd) and [TailStart, Total).
type State struct {
	HeadEnd, TailStart, Total int64
	End                       int64 // -1 while the command runs
	Finished                  bool
}

// State returns the bounds.
func (s *Spool) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{HeadEnd: s.kept, TailStart: s.tailStart(), Total: s.total, End: s.end, Finished: s.finished}
}

// ReadAt copies kept bytes from offset on. When offset lies in the gap it returns 0 and where the stream goes on.
func (s *Spool) ReadAt(p []byte, offset int64) (n int, next int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset < 0 || offset > s.total {
		return 0, offset, errors.New("offset out of range")
	}
	tail := s.tailStart()
	if offset >= s.kept && offset < tail {
		return 0, tail, nil
	}
	limit := s.total
	if offset < s.kept && tail > s.kept {
		limit = s.kept
	}
	want := p[:min(int64(len(p)), limit-offset)]
	for len(want) > 0 {
		position, run := s.locate(offset)
		part := want[:min(run, int64(len(want)))]
		if err := s.store.readAt(part, position); err != nil {
			return n, offset, err
		}
		n += len(part)
		offset += int64(len(part))
		want = want[len(part):]
	}
	return n, offset, nil
}

// Release gives all bytes up; counts stay.
func (s *Spool) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return
	}
	s.released = true
	s.kept, s.from = 0, s.total
	if s.store != nil {
		s.store.close()
		s.store = &memory{}
	}
	s.charge()
	s.wake()
}

// Shrink bounds a spool to size bytes in memory, giving up the middle: the common bound is passed by running commands.
func (s *Spool) Shrink(size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released || s.options.MemBytes <= size && s.noDisk {
		return
	}
	s.options.MemBytes, s.noDisk = size, true
	if s.store == nil {
		s.store = &memory{}
	}
	s.toMemory()
	s.charge()
	s.wake()
}
