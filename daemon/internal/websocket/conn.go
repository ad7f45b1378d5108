package websocket

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"sandman.dev/daemon/internal/intake"
)

// writeTimeout drops a peer that takes nothing for so long: its execs go on and can be attached again.
const writeTimeout = 60 * time.Second

const (
	// messageTimeout bounds the arrival of a message over keptFree bytes, as what it holds is missing to others.
	messageTimeout = 2 * time.Minute
	keptFree       = 64 << 10
)

// Conn is one accepted connection. One goroutine reads; any number write.
type Conn struct {
	net     net.Conn
	br      *bufio.Reader
	limit   int
	scratch [14]byte
	// Share counts what a message on its way holds; nil: it is not bounded together with others'.
	Share *intake.Share
	timed bool // the message on its way has a deadline

	mu     sync.Mutex // orders writes
	closed bool
	header [14 + 16]byte
	parts  [3][]byte
}

// Upgrade answers the handshake. With an error the request has been answered already.
func Upgrade(w http.ResponseWriter, r *http.Request, subprotocol string, limit int) (*Conn, error) {
	fail := func(status int, text string) (*Conn, error) {
		if status == http.StatusUpgradeRequired {
			w.Header().Set("Sec-WebSocket-Version", "13")
			w.Header().Set("Upgrade", "websocket")
		}
		http.Error(w, text, status)
		return nil, errors.New(text)
	}
	key := r.Header.Get("Sec-WebSocket-Key")
	raw, err := base64.StdEncoding.DecodeString(key)
	switch {
	case r.Method != http.MethodGet:
		return fail(http.StatusMethodNotAllowed, "a WebSocket begins with GET")
	case !hasToken(r.Header.Values("Connection"), "upgrade") || !hasToken(r.Header.Values("Upgrade"), "websocket"):
		return fail(http.StatusUpgradeRequired, "this path speaks WebSocket")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return fail(http.StatusUpgradeRequired, "WebSocket version 13 is needed")
	case err != nil || len(raw) != 16:
		return fail(http.StatusBadRequest, "Sec-WebSocket-Key is not valid")
	}
	answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept(key) + "\r\n"
	if asked := r.Header.Values("Sec-WebSocket-Protocol"); len(asked) > 0 {
		if !hasToken(asked, subprotocol) {
			return fail(http.StatusBadRequest, "the subprotocol is "+subprotocol)
		}
		answer += "Sec-WebSocket-Protocol: " + subprotocol + "\r\n"
	}
	nc, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return fail(http.StatusInternalServerError, err.Error())
	}
	_ = nc.SetDeadline(time.Time{})
	_ = nc.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := io.WriteString(nc, answer+"\r\n"); err != nil {
		nc.Close()
		return nil, err
	}
	return &Conn{net: nc, br: rw.Reader, limit: limit}, nil
}

func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func hasToken(values []string, token string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// Read returns the next message in buffer, grown where needed; it answers pings and closes by itself.
// After an error the connection is closed.
func (c *Conn) Read(buffer []byte) (opcode byte, message []byte, err error) {
	opcode, message, err = c.read(buffer[:0])
	if err != nil {
		var violation *CloseError
		if errors.As(err, &violation) {
			c.Close(violation.Code, violation.Reason)
		} else {
			c.Abort()
		}
	}
	return opcode, message, err
}

func (c *Conn) read(message []byte) (byte, []byte, error) {
	var kind byte
	for {
		h, err := readHeader(c.br, &c.scratch)
		if err != nil {
			return 0, nil, err
		}
		if h.opcode >= opClose {
			if err := c.control(h); err != nil {
				return 0, nil, err
			}
			continue
		}
		if (h.opcode == opContinuation) != (kind != 0) {
			return 0, nil, errSequence
		}
		if kind == 0 {
			kind = h.opcode
		}
		if h.length > uint64(c.limit-len(message)) {
			return 0, nil, errTooBig
		}
		if message, err = c.payload(message, h); err != nil {
			return 0, nil, err
		}
		if h.final {
			if c.timed {
				c.timed = false
				c.deadline(time.Time{})
			}
			if kind == Text && !utf8.Valid(message) {
				return 0, nil, errBadText
			}
			return kind, message, nil
		}
	}
}

// payload appends a frame's bytes as they come: a peer that announces much and sends little costs little.
func (c *Conn) payload(message []byte, h header) ([]byte, error) {
	start := len(message)
	for left := int(h.length); left > 0; {
		step := min(left, 64<<10)
		at := len(message)
		if cap(message)-at < step {
			size := max(2*cap(message), at+step)
			if h.final {
				size = min(size, max(at+left, at+step))
			}
			if size > keptFree && !c.timed {
				c.timed = true
				c.deadline(time.Now().Add(messageTimeout))
			}
			if c.Share.Grow(size) != nil {
				return nil, errFull
			}
			grown := make([]byte, at, size)
			copy(grown, message)
			message = grown
		}
		message = message[:at+step]
		if _, err := io.ReadFull(c.br, message[at:]); err != nil {
			return nil, unexpected(err)
		}
		left -= step
	}
	unmask(message[start:], h.mask, 0)
	return message, nil
}

// deadline bounds reading, unless Close has done so already.
func (c *Conn) deadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_ = c.net.SetReadDeadline(t)
	}
}

func (c *Conn) control(h header) error {
	var buffer [125]byte
	payload := buffer[:h.length]
	if _, err := io.ReadFull(c.br, payload); err != nil {
		return unexpected(err)
	}
	unmask(payload, h.mask, 0)
	switch h.opcode {
	case opPing:
		return c.write(opPong, payload, nil)
	case opClose:
		code := CloseNormal
		if len(payload) >= 2 {
			code = int(binary.BigEndian.Uint16(payload))
			if !utf8.Valid(payload[2:]) || code < 1000 || code > 4999 || code == 1004 || code == 1005 || code == 1006 || (code > 1014 && code < 3000) {
				code = CloseProtocol
			}
		}
		c.Close(code, "")
		return io.EOF
	}
	return nil
}

// Write sends one message made of two parts; head is at most 16 bytes.
func (c *Conn) Write(opcode byte, head, payload []byte) error {
	return c.write(opcode, head, payload)
}

func (c *Conn) write(opcode byte, head, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosedHere
	}
	_ = c.net.SetWriteDeadline(time.Now().Add(writeTimeout))
	out := appendHeader(c.header[:0], opcode, len(head)+len(payload))
	var err error
	if len(head) <= 16 && len(payload) == 0 {
		_, err = c.net.Write(append(out, head...))
	} else {
		buffers := net.Buffers(c.parts[:0])
		if len(head) <= 16 {
			buffers = append(buffers, append(out, head...))
		} else {
			buffers = append(buffers, out, head)
		}
		if len(payload) > 0 {
			buffers = append(buffers, payload)
		}
		_, err = buffers.WriteTo(c.net)
		c.parts = [3][]byte{}
	}
	if err != nil {
		c.closed = true
		c.net.Close() // a half-written frame: nothing can follow it
	}
	return err
}

// Close tells the peer why, and closes. It never blocks longer than a second.
func (c *Conn) Close(code int, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	_ = c.net.SetWriteDeadline(time.Now().Add(time.Second))
	payload := binary.BigEndian.AppendUint16(nil, uint16(code))
	payload = append(payload, reason[:min(len(reason), 120)]...)
	_, _ = c.net.Write(append(appendHeader(nil, opClose, len(payload)), payload...))
	if half, ok := c.net.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // so that the close frame arrives although input is unread
		_ = c.net.SetReadDeadline(time.Now().Add(time.Second))
		go func() {
			_, _ = io.CopyN(io.Discard, c.net, 16<<20)
			c.net.Close()
		}()
		return
	}
	c.net.Close()
}

// Abort closes without a word.
func (c *Conn) Abort() {
	c.net.Close() // first: a writer blocked with the lock is freed by it
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
}
