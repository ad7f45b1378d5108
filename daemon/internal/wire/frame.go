package wire

import (
	"encoding/binary"
	"errors"
)

// Kinds of binary frames.
const (
	KindStdin  = 0
	KindStdout = 1
	KindStderr = 2
)

// Sizes of binary frames, as PROTOCOL.md states them.
const (
	StdinHeader      = 5
	OutputHeader     = 13
	MaxStdinPayload  = 256 << 10
	MaxOutputPayload = 64 << 10
)

// Errors of binary frames.
var (
	ErrFrame         = errors.New("not a stdin frame: u8 kind 0, u32 channel, payload")
	ErrFrameTooLarge = errors.New("the payload of a stdin frame is at most 256 KiB")
)

// DecodeStdin takes a client's binary frame apart; the payload is a part of message. With ErrFrameTooLarge the
// channel is valid.
func DecodeStdin(message []byte) (channel uint32, payload []byte, err error) {
	if len(message) < StdinHeader || message[0] != KindStdin {
		return 0, nil, ErrFrame
	}
	channel = binary.BigEndian.Uint32(message[1:])
	if len(message) > StdinHeader+MaxStdinPayload {
		return channel, nil, ErrFrameTooLarge
	}
	return channel, message[StdinHeader:], nil
}

// AppendOutput appends the header of an output frame; its payload follows.
func AppendOutput(out []byte, kind byte, channel uint32, offset int64) []byte {
	out = append(out, kind)
	out = binary.BigEndian.AppendUint32(out, channel)
	return binary.BigEndian.AppendUint64(out, uint64(offset))
}
