package httpd

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// bufferBytes of an answer are held back: one that fits gets a Content-Length and leaves in one write.
const bufferBytes = 16 << 10

var errBodyTooLong = errors.New("httpd: more body than its Content-Length")

// response frames one answer. It is used by one goroutine at a time, as net/http's is.
type response struct {
	conn     *conn
	request  *http.Request
	body     *requestBody
	header   http.Header
	status   int
	buffer   []byte
	sent     bool  // the head is on its way
	chunked  bool  // the body is framed in chunks
	length   int64 // the declared length, or -1
	written  int64
	close    bool
	hijacked bool
	silent   bool // HEAD, 204, 304: a head alone
}

func newResponse(c *conn, request *http.Request, body *requestBody) *response {
	return &response{conn: c, request: request, body: body, header: make(http.Header, 4), length: -1, close: request.Close}
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	if r.status != 0 || r.hijacked {
		return
	}
	if status < 200 { // early hints and the like: nobody here sends them
		return
	}
	r.status = status
	r.silent = r.request.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified
	if text := r.header.Get("Content-Length"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
			r.length = n
		} else {
			r.header.Del("Content-Length")
		}
	}
	if strings.EqualFold(r.header.Get("Connection"), "close") {
		r.close = true
	}
}

func (r *response) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.silent {
		return len(p), nil
	}
	if r.length >= 0 && r.written+int64(len(p)) > r.length {
		return 0, errBodyTooLong
	}
	r.written += int64(len(p))
	if !r.sent && len(r.buffer)+len(p) <= bufferBytes {
		r.buffer = append(r.buffer, p...)
		return len(p), nil
	}
	if err := r.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// send writes the head if it is due, what is held back, and p.
func (r *response) send(p []byte) error {
	_ = r.conn.net.SetWriteDeadline(time.Now().Add(writeTimeout))
	var parts net.Buffers
	if !r.sent {
		r.sent = true
		if r.length < 0 && !r.silent {
			if r.request.ProtoMinor >= 1 {
				r.chunked = true
			} else {
				r.close = true // HTTP/1.0: the end of the connection ends the body
			}
		}
		parts = append(parts, r.head())
	}
	size := len(r.buffer) + len(p)
	if size > 0 {
		if r.chunked {
			parts = append(parts, []byte(strconv.FormatInt(int64(size), 16)+"\r\n"))
		}
		if len(r.buffer) > 0 {
			parts = append(parts, r.buffer)
		}
		if len(p) > 0 {
			parts = append(parts, p)
		}
		if r.chunked {
			parts = append(parts, []byte("\r\n"))
		}
	}
	_, err := parts.WriteTo(r.conn.net)
	r.buffer = nil
	if err != nil {
		r.close = true
	}
	return err
}

func (r *response) head() []byte {
	out := make([]byte, 0, 256)
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(r.status), 10)
	out = append(out, ' ')
	out = append(out, http.StatusText(r.status)...)
	out = append(out, "\r\n"...)
	r.header.Del("Transfer-Encoding")
	r.header.Del("Connection")
	for name, values := range r.header {
		for _, value := range values {
			out = append(out, name...)
			out = append(out, ": "...)
			out = append(out, strings.Map(oneLine, value)...)
			out = append(out, "\r\n"...)
		}
	}
	if r.chunked {
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	if r.close {
		out = append(out, "Connection: close\r\n"...)
	}
	return append(out, "\r\n"...)
}

// oneLine keeps a value inside its header line, whatever a file name brought into it.
func oneLine(c rune) rune {
	if c == '\r' || c == '\n' || c == 0 {
		return ' '
	}
	return c
}

// Flush sends what is held back.
func (r *response) Flush() { _ = r.FlushError() }

// FlushError is Flush for http.ResponseController.
func (r *response) FlushError() error {
	r.WriteHeader(http.StatusOK)
	if r.sent && len(r.buffer) == 0 {
		return nil
	}
	return r.send(nil)
}

// ReadFrom lets the kernel copy a file of known length to the connection.
func (r *response) ReadFrom(source io.Reader) (int64, error) {
	r.WriteHeader(http.StatusOK)
	if r.silent {
		return 0, nil
	}
	if r.length < 0 || r.length-r.written <= bufferBytes {
		return io.CopyBuffer(writerOnly{r}, source, make([]byte, 64<<10))
	}
	if err := r.send(nil); err != nil {
		return 0, err
	}
	var total int64
	for r.written < r.length { // in steps, so that each one has its own write deadline
		_ = r.conn.net.SetWriteDeadline(time.Now().Add(writeTimeout))
		step := min(r.length-r.written, 4<<20)
		n, err := io.CopyN(r.conn.net, source, step)
		r.written += n
		total += n
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			r.close = true
			return total, err
		}
	}
	return total, nil
}

type writerOnly struct{ io.Writer }

// finish completes the framing; an answer shorter than it declared closes the connection, so that the peer can tell.
func (r *response) finish() error {
	r.WriteHeader(http.StatusOK)
	if !r.body.finished && (r.body.owesContinue || r.body.failed || r.request.ContentLength > maxDrainBytes) {
		r.close = true
	}
	if !r.sent && !r.silent && r.length < 0 {
		r.length = r.written
		r.header.Set("Content-Length", strconv.FormatInt(r.written, 10))
	}
	if !r.sent || len(r.buffer) > 0 {
		if err := r.send(nil); err != nil {
			return err
		}
	}
	if r.chunked {
		_, err := io.WriteString(r.conn.net, "0\r\n\r\n")
		return err
	}
	if !r.silent && r.length >= 0 && r.written < r.length {
		return io.ErrShortWrite
	}
	return nil
}

// Hijack hands the connection over; bytes that were read ahead are in the reader.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if r.sent || r.hijacked {
		return nil, nil, errors.New("httpd: the answer has begun")
	}
	r.hijacked = true
	return r.conn.net, bufio.NewReadWriter(r.conn.br, nil), nil
}

// SetReadDeadline and SetWriteDeadline serve http.ResponseController.
func (r *response) SetReadDeadline(t time.Time) error  { return r.conn.net.SetReadDeadline(t) }
func (r *response) SetWriteDeadline(t time.Time) error { return r.conn.net.SetWriteDeadline(t) }
