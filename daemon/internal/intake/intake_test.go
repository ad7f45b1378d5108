package intake

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadAllOfEverySize(t *testing.T) {
	b := New(1 << 30)
	for _, size := range []int{0, 1, 4095, 4096, 4097, 65_536, 65_537, 1_000_000} {
		text := bytes.Repeat([]byte("z"), size)
		for _, announced := range []int64{-1, int64(size)} {
			for _, limit := range []int{0, 1, size - 1, size, size + 1, 4096} {
				s := b.Share()
				got, err := s.ReadAll(iotest.HalfReader(bytes.NewReader(text)), announced, int64(max(limit, 0)))
				if want := min(size, max(limit, 0)+1); err != nil || len(got) != want {
					t.Fatalf("%d of %d with %d announced: %d, %v", limit, size, announced, len(got), err)
				}
				s.Release()
			}
		}
	}
	if b.Held() != 0 {
		t.Fatalf("%d held", b.Held())
	}
}

func TestTheBoundIsCommonAndSmallRequestsAreFree(t *testing.T) {
	b := New(1 << 20)
	first, second := b.Share(), b.Share()
	if _, err := first.ReadAll(strings.NewReader(strings.Repeat("a", 700_000)), 700_000, 1<<24); err != nil {
		t.Fatal(err)
	}
	if _, err := second.ReadAll(strings.NewReader(strings.Repeat("b", 700_000)), 700_000, 1<<24); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	if _, err := b.Share().ReadAll(io.LimitReader(strings.NewReader(strings.Repeat("c", 60_000)), 60_000), 60_000, 1<<24); err != nil {
		t.Fatal(err)
	}
	second.Release()
	first.Release()
	first.Release()
	if b.Held() != 0 {
		t.Fatalf("%d held", b.Held())
	}
}
