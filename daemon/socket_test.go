package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
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

func TestB034B036B044SocketExec(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	for range 50 { // one terminal event after all output, and the channel's number is free again
		p.send(request{"op": "start", "ch": 7, "command": "seq 1 500; echo e >&2; exit 4"})
		out, errors, end := p.collect(7)
		if strings.Count(out, "\n") != 500 || errors != "e\n" || end.Op != "exit" || end.code() != 4 || end.OutBytes != int64(len(out)) {
			t.Fatalf("%d %q %+v", len(out), errors, end)
		}
	}
	p.send(request{"op": "attach", "ch": 8, "id": d.sh("echo old; exit 2", "id", "old").ID, "stdout_offset": 1})
	m := p.until("started")
	if !m.Attached {
		t.Fatalf("%+v", m)
	}
	if m = p.until("data"); m.offset != 1 || string(m.data) != "ld\n" {
		t.Fatalf("%+v", m)
	}
	if m = p.until("exit"); m.code() != 2 {
		t.Fatalf("%+v", m)
	}
	for _, c := range []struct {
		message request
		typ     string
	}{
		{request{"op": "attach", "ch": 9, "id": "nope"}, "exec-not-found"},
		{request{"op": "attach", "ch": 9, "id": "old", "stdout_offset": 99}, "offset-out-of-range"},
		{request{"op": "attach", "ch": 9, "id": "old", "stdout_offset": -1}, "invalid-request"},
		{request{"op": "start", "ch": 9, "argv": []string{"/nope"}}, "exec-start-failed"},
		{request{"op": "start", "ch": 9, "command": "x", "what": 1}, "invalid-request"},
		{request{"op": "dance"}, "invalid-request"},
	} {
		p.send(c.message)
		if m, _ := p.read(); m.Op != "error" || !strings.HasSuffix(m.Type, c.typ) {
			t.Fatalf("%v: %+v", c.message, m)
		}
	}
}

func TestB008B048SocketStdin(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "argv": []string{"sha256sum"}, "stdin": "stream"})
	started := p.until("started")
	credit, left, sent := started.StdinCredit, int64(5<<20), int64(0)
	for sent < left {
		if credit == 0 {
			credit += p.until("stdin_credit").Bytes
			continue
		}
		n := min(credit, left-sent, 200_000)
		p.stdin(1, strings.Repeat("s", int(n)))
		sent, credit = sent+n, credit-n
	}
	p.send(request{"op": "eof", "ch": 1})
	want := d.sh("head -c 5242880 /dev/zero | tr '\\0' s | sha256sum").Stdout
	if m := p.until("data"); string(m.data) != want {
		t.Fatalf("%q, not %q", m.data, want)
	}
	p.until("exit")
	p.send(request{"op": "start", "ch": 2, "argv": []string{"cat"}, "stdin": "stream"})
	p.until("started")
	p.stdin(2, strings.Repeat("x", 256<<10+1))
	if m, _ := p.read(); m.Op != "error" || !strings.HasSuffix(m.Type, "frame-too-large") {
		t.Fatalf("%+v", m)
	}
	p.send(request{"op": "eof", "ch": 2})
	p.until("exit")
}

func TestB051NoGapAndNoDoubleOverReconnects(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "id": "seq", "command": "for i in 1 2 3 4 5; do seq 1 40000; sleep 0.05; done; exit 9", "credit": 1 << 30})
	var out strings.Builder
	var end message
	for end.Op == "" {
		budget := out.Len() + rand.IntN(100_000)
		for {
			m, err := p.read()
			if err != nil {
				t.Fatal(err)
			}
			if m.Op == "data" {
				if m.offset != int64(out.Len()) {
					t.Fatalf("offset %d at %d", m.offset, out.Len())
				}
				out.Write(m.data)
			}
			if m.Op == "exit" {
				end = m
				break
			}
			if out.Len() > budget {
				p.nc.Close()
				p = d.connect()
				p.send(request{"op": "attach", "ch": 1, "id": "seq", "stdout_offset": out.Len(), "credit": 1 << 30})
				break
			}
		}
	}
	var want strings.Builder
	for range 5 {
		for i := 1; i <= 40000; i++ {
			fmt.Fprintln(&want, i)
		}
	}
	if out.String() != want.String() || end.code() != 9 {
		t.Fatalf("%d bytes of %d, code %d", out.Len(), want.Len(), end.code())
	}
}

func TestB053GapIsTold(t *testing.T) {
	d := start(t, settings{"spool_bytes": 1 << 20, "memory_bytes": 8 << 20})
	expect(t, d.sh("head -c 20000000 /dev/zero | tr '\\0' x", "id", "big", "max_output_bytes", 0), 0, "")
	p := d.connect()
	p.send(request{"op": "attach", "ch": 1, "id": "big", "stdout_offset": 100, "credit": 1 << 30})
	at, gaps := int64(100), int64(0)
	for {
		m, err := p.read()
		if err != nil {
			t.Fatal(err)
		}
		switch m.Op {
		case "gap":
			if m.From != at || m.To <= m.From || m.Stream != "stdout" {
				t.Fatalf("%+v at %d", m, at)
			}
			gaps, at = gaps+m.To-m.From, m.To
			continue
		case "data":
			if m.offset != at {
				t.Fatalf("offset %d at %d", m.offset, at)
			}
			at += int64(len(m.data))
			continue
		case "exit":
			if at != 20_000_000 || gaps < 18_000_000 || m.OutBytes != 20_000_000 {
				t.Fatalf("at %d, gaps %d, %+v", at, gaps, m)
			}
		default:
			continue
		}
		break
	}
}

func TestBlockingReaderLosesNothing(t *testing.T) {
	d := start(t, settings{"spool_bytes": 1 << 20, "memory_bytes": 8 << 20})
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "command": "head -c 8000000 /dev/zero; echo end >&2", "credit": 1 << 16})
	time.Sleep(300 * time.Millisecond) // the command has filled what there is, and waits
	out, errors, end := p.collect(1)
	if len(out) != 8_000_000 || errors != "end\n" || end.code() != 0 {
		t.Fatalf("%d %q %+v", len(out), errors, end)
	}
}

func TestB054B055DeadWatchersCostNothing(t *testing.T) {
	d := start(t, nil)
	d.call("POST", "/v1/exec", request{"command": "sleep 1; seq 1 100000", "background": true, "id": "w"})
	alive := d.connect()
	alive.send(request{"op": "attach", "ch": 1, "id": "w"})
	before := descriptors(t, d)
	for range 40 {
		dead := d.connect()
		dead.send(request{"op": "attach", "ch": 1, "id": "w", "credit": 10})
		dead.nc.Close()
	}
	out, _, end := alive.collect(1)
	if strings.Count(out, "\n") != 100_000 || end.code() != 0 {
		t.Fatalf("%d lines, %+v", strings.Count(out, "\n"), end)
	}
	eventually(t, "the descriptors are given back", func() bool { return descriptors(t, d) <= before })
}

func TestB037OutputFloodKeepsMemoryFlat(t *testing.T) {
	d := start(t, settings{"spool_dir": t.TempDir()})
	r := d.sh("yes 0123456789 | head -c 200000000", "max_output_bytes", 1000)
	if r.OutBytes != 200_000_000 || r.Truncated != 199_999_000 || len(r.Stdout) != 1000 || r.Head != 500 || r.code() != 0 {
		t.Fatalf("%+v", r.OutBytes)
	}
	if peak := status(t, d, "VmHWM"); peak > 64<<10*raceFactor {
		t.Fatalf("the daemon's peak is %d KiB", peak)
	}
}

func TestB059Terminal(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "argv": []string{"bash", "--norc"}, "pty": request{"rows": 33, "cols": 101}, "env": map[string]string{"PS1": "READY> "}})
	p.until("started")
	seen := ""
	wait := func(text string) {
		t.Helper()
		for !strings.Contains(seen, text) {
			m, err := p.read()
			if err != nil || m.Op == "exit" {
				t.Fatalf("%q was never printed (%v %+v); seen %q", text, err, m, seen)
			}
			if m.Op == "data" {
				seen += string(m.data)
			}
		}
		seen = seen[strings.Index(seen, text)+len(text):]
	}
	wait("READY> ")
	p.stdin(1, "stty size; sleep 100\r")
	wait("33 101")
	time.Sleep(200 * time.Millisecond)
	p.stdin(1, "\x03")
	wait("READY> ")
	p.send(request{"op": "resize", "ch": 1, "rows": 20, "cols": 60})
	p.stdin(1, "echo $?; stty size\r")
	wait("130")
	wait("20 60")
	p.stdin(1, "exit 5\r")
	if m := p.until("exit"); m.code() != 5 {
		t.Fatalf("%+v", m)
	}
	p.send(request{"op": "start", "ch": 2, "argv": []string{"cat"}, "pty": request{}})
	p.until("started")
	p.send(request{"op": "eof", "ch": 2})
	if m := p.until("exit"); m.code() != 0 {
		t.Fatalf("%+v", m)
	}
	expect(t, d.exec(request{"argv": []string{"cat"}, "pty": request{}}), 0, "")
}
