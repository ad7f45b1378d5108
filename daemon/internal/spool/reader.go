package spool

// Sub is one reader's subscription. A reader costs the stream a flag; it is never waited for unless it holds.
type Sub struct {
	C     chan struct{} // has an element when something changed since it was last taken
	spool *Spool
	hold  int64 // bytes from here on must not be dropped; -1: nothing is held
}

func (s *Sub) notify() {
	select {
	case s.C <- struct{}{}:
	default:
	}
}

// Subscribe begins a subscription; end it with Close.
func (s *Spool) Subscribe() *Sub { return s.SubscribeWith(make(chan struct{}, 1)) }

// SubscribeWith shares one channel between the subscriptions of several streams.
func (s *Spool) SubscribeWith(c chan struct{}) *Sub {
	sub := &Sub{C: c, spool: s, hold: -1}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = make(map[*Sub]struct{}, 1)
	}
	s.subs[sub] = struct{}{}
	return sub
}

// Hold makes the writer wait rather than drop what lies at offset or later; -1 lets go.
func (s *Sub) Hold(offset int64) {
	s.spool.mu.Lock()
	defer s.spool.mu.Unlock()
	s.hold = offset
	s.spool.room.Broadcast()
}

// Close ends the subscription and its hold.
func (s *Sub) Close() {
	s.spool.mu.Lock()
	defer s.spool.mu.Unlock()
	delete(s.spool.subs, s)
	s.spool.room.Broadcast()
}

// Room says how many bytes may be appended without dropping a held one, waiting until it is at least one.
func (s *Spool) Room() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		room := s.roomNow()
		if room > 0 || s.finished || s.end >= 0 || s.released {
			return max(room, chunkBytes)
		}
		s.room.Wait()
	}
}

func (s *Spool) roomNow() int64 {
	held := int64(-1)
	for sub := range s.subs {
		if sub.hold >= 0 && (held < 0 || sub.hold < held) {
			held = sub.hold
		}
	}
	if held < 0 {
		return 1 << 40
	}
	return max(held, s.kept, min(s.head, s.total)) + s.usable() - s.total
}

// usable of the tail may be filled with what a blocking reader has not had yet.
func (s *Spool) usable() int64 { return s.tail - min(slackBytes, s.tail/2) }

// Lag is how far behind what was sent a reader may hold, so that the writer still has room: all of usable held for what
// is under way would be a deadlock, because only new output makes the reader ask for more.
func (s *Spool) Lag() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usable() / 2
}
