package spool

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
)

// pattern is byte n of an endless stream, so that any misplaced byte shows.
func pattern(from, n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		at := uint64(from+int64(i)) * 0x9e3779b97f4a7c15
		p[i] = byte(at >> 56)
	}
	return p
}

// check reads a spool from every kind of place and compares it with the stream that it was given.
func check(t *testing.T, s *Spool, total int64) {
	t.Helper()
	state := s.State()
	if state.Total != total || state.HeadEnd > state.TailStart && state.HeadEnd != total || state.TailStart > total {
		t.Fatalf("%+v, total %d", state, total)
	}
	buffer := make([]byte, 10_000)
	for offset := int64(0); offset < total; {
		n, next, err := s.ReadAt(buffer[:1+rand.IntN(len(buffer))], offset)
		switch {
		case err != nil:
			t.Fatal(err)
		case n == 0:
			if offset != state.HeadEnd || next != state.TailStart {
				t.Fatalf("gap %d-%d, state %+v", offset, next, state)
			}
		case !bytes.Equal(buffer[:n], pattern(offset, int64(n))):
			t.Fatalf("wrong bytes at %d (%d), state %+v", offset, n, state)
		}
		offset = next
	}
}

func TestSpoolKeepsHeadAndTail(t *testing.T) {
	for _, dir := range []string{"", t.TempDir(), "/nonexistent", "/dev/full"} {
		for range 20 {
			s := New(Options{Dir: dir, DiskBytes: 8<<10 + rand.Int64N(1<<20), MemBytes: 8<<10 + rand.Int64N(100_000)})
			total := int64(0)
			for total < 2<<20 {
				n := 1 + rand.Int64N(1<<(1+rand.IntN(17)))
				s.Append(pattern(total, n))
				total += n
				if rand.IntN(20) == 0 {
					check(t, s, total)
				}
			}
			check(t, s, total)
			if rand.IntN(2) == 0 {
				s.Shrink(16 << 10)
				check(t, s, total)
				s.Append(pattern(total, 1000))
				check(t, s, total+1000)
				total += 1000
			}
			s.Release()
			if state := s.State(); state.Total != total || state.HeadEnd != 0 || state.TailStart != total {
				t.Fatalf("%+v", state)
			}
			s.Append(pattern(total, 7))
			check(t, s, total+7)
		}
	}
}

func TestSpoolDiskFailureDegrades(t *testing.T) {
	s := New(Options{Dir: t.TempDir(), DiskBytes: 4 << 20, MemBytes: 100_000})
	total := int64(0)
	add := func(n int64) { s.Append(pattern(total, n)); total += n }
	for range 60 {
		add(50_000)
	}
	d := s.store.(*disk)
	broken, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	good := d.file
	s.store = &failing{disk: disk{file: good}, broken: broken}
	add(50_000)
	check(t, s, total)
	for range 10 {
		add(50_000)
	}
	check(t, s, total)
}

// failing reads what was written and writes no more.
type failing struct {
	disk
	broken *os.File
}

func (f *failing) writeAt(p []byte, position int64) error {
	_, err := f.broken.Write(p)
	return err
}

func TestB051FollowersSeeEveryByteOnce(t *testing.T) {
	s := New(Options{MemBytes: 4 << 20})
	const total = 1 << 20
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			sub := s.Subscribe()
			defer sub.Close()
			buffer := make([]byte, 3000)
			offset := int64(0)
			for {
				n, next, err := s.ReadAt(buffer, offset)
				if err != nil || (n == 0 && next > offset) || !bytes.Equal(buffer[:n], pattern(offset, int64(n))) {
					t.Errorf("at %d: %d %v", offset, n, err)
					return
				}
				offset = next
				if n > 0 {
					continue
				}
				if state := s.State(); state.End >= 0 && offset == state.End {
					return
				}
				<-sub.C
			}
		})
	}
	for at := int64(0); at < total; at += 4096 {
		s.Append(pattern(at, 4096))
	}
	s.Finish()
	group.Wait()
}

func TestHoldMakesTheWriterWait(t *testing.T) {
	s := New(Options{MemBytes: 64 << 10})
	sub := s.Subscribe()
	sub.Hold(0)
	total := int64(0)
	for s.roomSoon() {
		n := min(s.Room(), 4096)
		s.Append(pattern(total, n))
		total += n
	}
	check(t, s, total)
	if state := s.State(); state.TailStart > state.HeadEnd {
		t.Fatalf("a held byte was dropped: %+v", state)
	}
	woke := make(chan struct{})
	go func() { s.Room(); close(woke) }()
	select {
	case <-woke:
		t.Fatal("there is room although all is held")
	case <-time.After(20 * time.Millisecond):
	}
	sub.Close()
	<-woke
}

func (s *Spool) roomSoon() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomNow() > 0
}

func TestBudgetReclaims(t *testing.T) {
	called := make(chan struct{}, 1)
	b := &Budget{MemBytes: 100_000, DiskBytes: 1 << 20}
	b.Reclaim = func() { called <- struct{}{} }
	s := New(Options{MemBytes: 1 << 20, Budget: b})
	s.Append(make([]byte, 300_000))
	<-called
	s.Release()
	if mem, disk := b.Held(); mem != 0 || disk != 0 {
		t.Fatalf("%d %d", mem, disk)
	}
}

func FuzzSpool(f *testing.F) {
	f.Add([]byte{1, 200, 255, 3}, uint16(9000))
	f.Fuzz(func(t *testing.T, sizes []byte, bound uint16) {
		s := New(Options{MemBytes: int64(bound)})
		total := int64(0)
		for _, size := range sizes[:min(len(sizes), 200)] {
			n := int64(size) * 37
			s.Append(pattern(total, n))
			total += n
		}
		check(t, s, total)
	})
}
