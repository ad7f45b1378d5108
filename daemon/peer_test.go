package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// raw sends one request by hand, with exactly this path and header, and returns the status.
func (d *daemon) raw(t testing.TB, path, authorization string) int {
	t.Helper()
	nc, err := net.Dial("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if authorization != "" {
		authorization = "Authorization: " + authorization + "\r\n"
	}
	fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n", path, authorization)
	var status int
	if _, err := fmt.Fscanf(bufio.NewReader(nc), "HTTP/1.1 %d", &status); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return status
}

// peer is a client of the socket, small enough to be wrong in no way that matters here.
type peer struct {
	t  testing.TB
	nc net.Conn
	br *bufio.Reader
}

func (d *daemon) connect() *peer {
	d.t.Helper()
	nc, err := net.Dial("unix", d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	fmt.Fprintf(nc, "GET /v1/connect HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sandman.v1\r\n\r\n", token)
	p := &peer{t: d.t, nc: nc, br: bufio.NewReaderSize(nc, 64<<10)}
	head := ""
	for !strings.HasSuffix(head, "\r\n\r\n") {
		line, err := p.br.ReadString('\n')
		if err != nil {
			d.t.Fatalf("handshake: %v after %q", err, head)
		}
		head += line
	}
	if !strings.HasPrefix(head, "HTTP/1.1 101") || !strings.Contains(head, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") || !strings.Contains(head, "sandman.v1") {
		d.t.Fatalf("handshake: %q", head)
	}
	d.t.Cleanup(func() { nc.Close() })
	return p
}

func (p *peer) frame(opcode byte, payload []byte) {
	p.t.Helper()
	out := []byte{0x80 | opcode}
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	mask := [4]byte{1, 2, 3, 4}
	out = append(out, mask[:]...)
	for i, b := range payload {
		out = append(out, b^mask[i&3])
	}
	if _, err := p.nc.Write(out); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

func (p *peer) send(message request) {
	p.t.Helper()
	raw, _ := json.Marshal(message)
	p.frame(1, raw)
}

func (p *peer) stdin(channel uint32, data string) {
	p.t.Helper()
	p.frame(2, append(binary.BigEndian.AppendUint32([]byte{0}, channel), data...))
}

type message struct {
	Op          string `json:"op"`
	Ch          uint32 `json:"ch"`
	Attached    bool   `json:"attached"`
	Stream      string `json:"stream"`
	From, To    int64
	Bytes       int64 `json:"bytes"`
	StdinOffset int64 `json:"stdin_offset"`
	StdinCredit int64 `json:"stdin_credit"`
	result
	kind   byte // of a data frame
	offset int64
	data   []byte
}

// read returns the next message; an error is the connection's.
func (p *peer) read() (m message, err error) {
	_ = p.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	var head [2]byte
	if _, err = io.ReadFull(p.br, head[:]); err != nil {
		return m, err
	}
	n := int(head[1])
	switch n {
	case 126:
		var b [2]byte
		_, err = io.ReadFull(p.br, b[:])
		n = int(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		_, err = io.ReadFull(p.br, b[:])
		n = int(binary.BigEndian.Uint64(b[:]))
	}
	if n > 256<<10 {
		p.t.Fatalf("a frame of %d bytes", n)
	}
	payload := make([]byte, n)
	if _, readErr := io.ReadFull(p.br, payload); readErr != nil || err != nil {
		return m, io.ErrUnexpectedEOF
	}
	switch head[0] & 0x0f {
	case 1:
		err = json.Unmarshal(payload, &m)
	case 2:
		m.Op, m.kind, m.Ch = "data", payload[0], binary.BigEndian.Uint32(payload[1:])
		m.offset, m.data = int64(binary.BigEndian.Uint64(payload[5:])), payload[13:]
	case 8:
		m.Op, m.data = "close", payload
	}
	return m, err
}

// until reads up to the first message of an op, and returns it.
func (p *peer) until(op string) message {
	p.t.Helper()
	for {
		m, err := p.read()
		if err != nil {
			p.t.Fatalf("waiting for %s: %v", op, err)
		}
		if m.Op == op {
			return m
		}
		if m.Op == "error" {
			p.t.Fatalf("waiting for %s: %+v", op, m.result)
		}
	}
}

// collect follows one channel to its end, granting credit as it goes.
func (p *peer) collect(channel uint32) (stdout, stderr string, end message) {
	p.t.Helper()
	var out [3]strings.Builder
	for {
		m, err := p.read()
		switch {
		case err != nil:
			p.t.Fatal(err)
		case m.Op == "data":
			if m.offset != int64(out[m.kind].Len()) {
				p.t.Fatalf("offset %d at %d", m.offset, out[m.kind].Len())
			}
			out[m.kind].Write(m.data)
			p.send(request{"op": "credit", "ch": channel, "bytes": len(m.data)})
		case m.Op == "exit" || m.Op == "error":
			return out[1].String(), out[2].String(), m
		}
	}
}
