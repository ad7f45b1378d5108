// Package websocket is the server side of RFC 6455, as much of it as the exec channel needs: no extensions,
// no compression (output of commands is latency-bound, and a shared window would keep memory per connection).
//
// Writing a frame is one writev of a header and the caller's own bytes: nothing is copied or held.
package websocket

import (
	"encoding/binary"
	"errors"
	"io"
)

// Opcodes of RFC 6455.
const (
	opContinuation = 0
	Text           = 1
	Binary         = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10
)

// Close codes of RFC 6455 that this side sends.
const (
	CloseNormal      = 1000
	CloseGoingAway   = 1001
	CloseProtocol    = 1002
	CloseInvalidText = 1007
	CloseTooBig      = 1009
	CloseTryLater    = 1013
)

// CloseError is why a connection cannot go on; Code is what the peer is told.
type CloseError struct {
	Code   int
	Reason string
}

func (e *CloseError) Error() string { return "websocket: " + e.Reason }

var (
	errReserved   = &CloseError{CloseProtocol, "reserved bits or opcode"}
	errUnmasked   = &CloseError{CloseProtocol, "a client's frames must be masked"}
	errControl    = &CloseError{CloseProtocol, "a control frame is fragmented or too long"}
	errSequence   = &CloseError{CloseProtocol, "fragments out of sequence"}
	errTooBig     = &CloseError{CloseTooBig, "message too big"}
	errFull       = &CloseError{CloseTryLater, "too many large messages are on their way"}
	errBadText    = &CloseError{CloseInvalidText, "text is not UTF-8"}
	errClosedHere = errors.New("websocket: closed")
)

type header struct {
	final  bool
	opcode byte
	length uint64
	mask   [4]byte
}

// readHeader reads one frame's header and checks what a header alone can violate.
func readHeader(r io.Reader, scratch *[14]byte) (h header, err error) {
	if _, err = io.ReadFull(r, scratch[:2]); err != nil {
		return h, err
	}
	h.final = scratch[0]&0x80 != 0
	h.opcode = scratch[0] & 0x0f
	if scratch[0]&0x70 != 0 || (h.opcode > Binary && h.opcode < opClose) || h.opcode > opPong {
		return h, errReserved
	}
	if scratch[1]&0x80 == 0 {
		return h, errUnmasked
	}
	h.length = uint64(scratch[1] & 0x7f)
	if h.opcode >= opClose && (!h.final || h.length > 125) {
		return h, errControl
	}
	switch h.length {
	case 126:
		if _, err = io.ReadFull(r, scratch[:2]); err != nil {
			return h, unexpected(err)
		}
		h.length = uint64(binary.BigEndian.Uint16(scratch[:2]))
	case 127:
		if _, err = io.ReadFull(r, scratch[:8]); err != nil {
			return h, unexpected(err)
		}
		h.length = binary.BigEndian.Uint64(scratch[:8])
	}
	if _, err = io.ReadFull(r, h.mask[:]); err != nil {
		return h, unexpected(err)
	}
	return h, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendHeader frames an unmasked payload of n bytes.
func appendHeader(out []byte, opcode byte, n int) []byte {
	out = append(out, 0x80|opcode)
	switch {
	case n < 126:
		return append(out, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(out, 126), uint16(n))
	default:
		return binary.BigEndian.AppendUint64(append(out, 127), uint64(n))
	}
}

// unmask undoes the client's masking in place; offset is the payload's position in its frame.
func unmask(p []byte, mask [4]byte, offset int) {
	for len(p) > 0 && offset&3 != 0 {
		p[0] ^= mask[offset&3]
		p, offset = p[1:], offset+1
	}
	word := uint64(binary.LittleEndian.Uint32(mask[:]))
	word |= word << 32
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, binary.LittleEndian.Uint64(p)^word)
		p = p[8:]
	}
	for i := range p {
		p[i] ^= mask[i&3]
	}
}
