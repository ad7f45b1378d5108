package websocket

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// masked frames a client's message in parts of the given size.
func masked(opcode byte, final bool, payload []byte) []byte {
	out := appendHeader(nil, opcode, len(payload))
	if !final {
		out[0] &^= 0x80
	}
	out[1] |= 0x80
	mask := [4]byte{9, 8, 7, 6}
	out = append(out, mask[:]...)
	body := append([]byte(nil), payload...)
	unmask(body, mask, 0)
	return append(out, body...)
}

func serve(t *testing.T, input []byte) (*Conn, *bytes.Buffer) {
	t.Helper()
	client, server := net.Pipe()
	written := &bytes.Buffer{}
	done := make(chan struct{})
	go func() { _, _ = io.Copy(written, client); close(done) }()
	c := &Conn{net: server, br: bufio.NewReader(bytes.NewReader(input)), limit: 1 << 20}
	t.Cleanup(func() { server.Close(); client.Close(); <-done })
	return c, written
}

func TestMessages(t *testing.T) {
	for _, size := range []int{0, 1, 125, 126, 65_535, 65_536, 300_000} {
		payload := bytes.Repeat([]byte("p≤"), size/4+1)[:size]
		input := append(masked(Binary, true, payload), masked(Binary, false, payload[:size/2])...)
		input = append(input, masked(opPing, true, []byte("in between"))...)
		input = append(input, masked(opContinuation, true, payload[size/2:])...)
		c, _ := serve(t, input)
		for range 2 {
			opcode, got, err := c.Read(nil)
			if err != nil || opcode != Binary || !bytes.Equal(got, payload) {
				t.Fatalf("%d: %d %d %v", size, opcode, len(got), err)
			}
		}
	}
}

func TestViolations(t *testing.T) {
	large := masked(Text, true, nil)
	large[1] = 0x80 | 127
	for name, c := range map[string]struct {
		input []byte
		code  int
	}{
		"unmasked":        {[]byte{0x81, 0}, CloseProtocol},
		"reserved":        {[]byte{0xf1, 0x80, 0, 0, 0, 0}, CloseProtocol},
		"opcode":          {[]byte{0x83, 0x80, 0, 0, 0, 0}, CloseProtocol},
		"continuation":    {masked(opContinuation, true, nil), CloseProtocol},
		"nested":          {append(masked(Text, false, []byte("a")), masked(Text, true, nil)...), CloseProtocol},
		"control":         {masked(opPing, false, nil), CloseProtocol},
		"text":            {masked(Text, true, []byte{0xff}), CloseInvalidText},
		"too big":         {masked(Binary, true, make([]byte, 1<<20+1)), CloseTooBig},
		"too big in sum":  {append(masked(Binary, false, make([]byte, 1<<20)), masked(opContinuation, true, []byte{1})...), CloseTooBig},
		"absurd length":   {append([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0, 0, 0, 0), CloseTooBig},
		"half a close":    {masked(opClose, true, []byte{3}), 0},
		"an ended stream": {[]byte{0x81}, 0},
	} {
		conn, _ := serve(t, c.input)
		_, _, err := conn.Read(nil)
		var violation *CloseError
		if err == nil || (c.code != 0) != errors.As(err, &violation) || (c.code != 0 && violation.Code != c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAcceptIsTheStandards(t *testing.T) {
	if got := accept("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatal(got)
	}
	if !hasToken([]string{"keep-alive, Upgrade"}, "upgrade") || hasToken([]string{"upgraded"}, "upgrade") {
		t.Fatal("tokens")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(masked(Text, true, []byte("hello")))
	f.Add(append(masked(Text, false, []byte("a")), masked(opContinuation, true, []byte("b"))...))
	f.Fuzz(func(t *testing.T, input []byte) {
		client, server := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		c := &Conn{net: server, br: bufio.NewReader(bytes.NewReader(input)), limit: 1 << 16}
		for {
			_, message, err := c.Read(nil)
			if len(message) > 1<<16 {
				t.Fatal("over the limit")
			}
			if err != nil {
				break
			}
		}
		server.Close()
		client.Close()
	})
}

func TestUnmaskMatchesByteByByte(t *testing.T) {
	mask := [4]byte{1, 2, 3, 4}
	for n := range 40 {
		for offset := range 5 {
			p := []byte(strings.Repeat("x", n))
			unmask(p, mask, offset)
			for i := range p {
				if want := byte('x') ^ mask[(i+offset)&3]; p[i] != want {
					t.Fatalf("%d %d at %d", n, offset, i)
				}
			}
		}
	}
}
