package spool

import "sync"

// Budget is the common bound of many spools: what they hold in memory and in files, and who gives up first.
type Budget struct {
	MemBytes, DiskBytes int64

	mu        sync.Mutex
	mem, disk int64
	// Reclaim is called, without locks and on a goroutine of its own, when a bound is passed.
	Reclaim func()
	calling bool
}

// Over says whether more is held than may be.
func (b *Budget) Over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mem > b.MemBytes || b.disk > b.DiskBytes
}

// Held returns what is held now.
func (b *Budget) Held() (mem, disk int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mem, b.disk
}

func (b *Budget) add(mem, disk int64) {
	b.mu.Lock()
	b.mem += mem
	b.disk += disk
	over := (b.mem > b.MemBytes || b.disk > b.DiskBytes) && !b.calling && b.Reclaim != nil && (mem > 0 || disk > 0)
	if over {
		b.calling = true
	}
	b.mu.Unlock()
	if over {
		go func() {
			b.Reclaim()
			b.mu.Lock()
			b.calling = false
			b.mu.Unlock()
		}()
	}
}

// charge tells the budget what changed. The caller holds the spool's lock.
func (s *Spool) charge() {
	if s.options.Budget == nil || s.store == nil {
		return
	}
	mem, disk := int64(0), int64(0)
	if _, ok := s.store.(*memory); ok {
		mem = s.store.bytes()
	} else {
		disk = s.store.bytes()
	}
	if mem != s.chargedMem || disk != s.chargedDisk {
		s.options.Budget.add(mem-s.chargedMem, disk-s.chargedDisk)
		s.chargedMem, s.chargedDisk = mem, disk
	}
}
