// Package intake bounds what all requests that are still on their way may hold in memory together.
package intake

import (
	"errors"
	"io"
	"sync/atomic"
)

// ErrFull: the requests on their way hold as much as all of them may.
var ErrFull = errors.New("too much is on its way")

// free bytes of every request are not counted: small ones are never refused, whatever large ones do.
const free = 64 << 10

// Budget is the common bound. Nobody waits for it: those who hold a part of it would wait for each other.
type Budget struct {
	most int64
	held atomic.Int64
}

// New returns a budget of so many bytes.
func New(most int64) *Budget { return &Budget{most: most} }

// Held is what is counted now.
func (b *Budget) Held() int64 { return b.held.Load() }

// Share is one request's part of a budget; a nil one is not bounded.
type Share struct {
	budget *Budget
	size   int64
}

// Share begins a part; end it with Release.
func (b *Budget) Share() *Share { return &Share{budget: b} }

// Grow counts a buffer of the request that grows to size bytes.
func (s *Share) Grow(size int) error {
	if s == nil || int64(size) <= free || int64(size) <= s.size {
		return nil
	}
	more := int64(size) - s.size
	if s.budget.held.Add(more) > s.budget.most {
		s.budget.held.Add(-more)
		return ErrFull
	}
	s.size += more
	return nil
}

// Release gives the part back.
func (s *Share) Release() {
	if s != nil {
		s.budget.held.Add(-s.size)
		s.size = 0
	}
}

// ReadAll reads r to its end, at most limit bytes and one more, which tells that there are more. What is announced is
// believed as it comes: a caller that announces much and sends little costs little.
func (s *Share) ReadAll(r io.Reader, announced, limit int64) ([]byte, error) {
	buffer := make([]byte, 0, min(4<<10, limit+1))
	for int64(len(buffer)) <= limit {
		if len(buffer) == cap(buffer) {
			size := min(2*int64(cap(buffer)), limit+1)
			if announced >= int64(len(buffer)) {
				size = min(size, announced+1) // one more for the end to be seen in
			}
			if err := s.Grow(int(size)); err != nil {
				return nil, err
			}
			grown := make([]byte, len(buffer), size)
			copy(grown, buffer)
			buffer = grown
		}
		n, err := r.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		if err == io.EOF {
			return buffer, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return buffer, nil
}
