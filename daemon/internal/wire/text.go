package wire

import "unicode/utf8"

// Text of commands is bytes. As JSON it is UTF-8 in which every ill-formed sequence has become one U+FFFD, as
// Python's errors="replace" does it, so that both sides agree on the same output.

const hexDigits = "0123456789abcdef"

// AppendJSONText appends p as the inside of a JSON string. Unless last, an unfinished character at p's end is left
// for the next call; rest says how many bytes those are.
func AppendJSONText(out, p []byte, last bool) (text []byte, rest int) {
	for i := 0; i < len(p); {
		c := p[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				out = append(out, '\\', c)
			case c >= 0x20 && c != 0x7f:
				out = append(out, c)
			case c == '\n':
				out = append(out, '\\', 'n')
			case c == '\t':
				out = append(out, '\\', 't')
			case c == '\r':
				out = append(out, '\\', 'r')
			default:
				out = append(out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			continue
		}
		if r, size := utf8.DecodeRune(p[i:]); r != utf8.RuneError || size > 1 {
			out = append(out, p[i:i+size]...)
			i += size
			continue
		}
		bad, partial := illFormed(p[i:])
		if partial && !last {
			return out, len(p) - i
		}
		out = append(out, "\uFFFD"...)
		i += bad
	}
	return out, 0
}

// illFormed measures the maximal part of p that begins like a character and is none; partial: p ends inside it.
func illFormed(p []byte) (size int, partial bool) {
	need, low, high := 0, byte(0x80), byte(0xbf)
	switch c := p[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
		if c == 0xe0 {
			low = 0xa0
		} else if c == 0xed {
			high = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 3
		if c == 0xf0 {
			low = 0x90
		} else if c == 0xf4 {
			high = 0x8f
		}
	default:
		return 1, false
	}
	for size = 1; size <= need; size++ {
		if size == len(p) {
			return size, true
		}
		if p[size] < low || p[size] > high {
			return size, false
		}
		low, high = 0x80, 0xbf
	}
	return size, false
}

// wholeHead shortens a cut-off beginning to whole characters: how many bytes of p to keep.
func wholeHead(p []byte) int {
	for back := 1; back <= 3 && back <= len(p); back++ {
		c := p[len(p)-back]
		if c < 0x80 {
			break
		}
		if c >= 0xc0 {
			if _, partial := illFormed(p[len(p)-back:]); partial {
				return len(p) - back
			}
			break
		}
	}
	return len(p)
}

// wholeTail says how many bytes to skip at the start of a cut-off end: the rest of a character that was cut.
func wholeTail(p []byte) int {
	skip := 0
	for skip < 3 && skip < len(p) && p[skip]&0xc0 == 0x80 {
		skip++
	}
	return skip
}
