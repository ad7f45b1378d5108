// Package httpd serves HTTP/1.1 to net/http handlers with a third of net/http's server: no TLS, no HTTP/2.
//
// It exists for size and idle memory: thousands of daemons each carry this binary. Parsing is still the
// standard library's (http.ReadRequest); what is here is the connection loop, the response framing, and a
// request context that watches for the caller's going away only when somebody asks it to.
package httpd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// headerTimeout bounds a request's head from its first byte, so that half-open clients do not pile up.
	headerTimeout = 15 * time.Second
	// idleTimeout outlasts the connection pools of common clients: they, not we, close first.
	idleTimeout = 10 * time.Minute
	// maxHeadBytes is the size of a request line with its headers; a path may have 4 KiB, escaped three times that.
	maxHeadBytes = 64 << 10
	// maxDrainBytes of an unread request body are read away to keep a connection; past it, closing is cheaper.
	maxDrainBytes = 256 << 10
	// writeTimeout ends a connection whose peer takes nothing at all for so long.
	writeTimeout = 2 * time.Minute
)

// Server runs Handler on every connection of a listener.
type Server struct {
	Handler        http.Handler
	MaxConnections int

	mu    sync.Mutex
	conns int
}

// Serve accepts until the listener is closed.
func (s *Server) Serve(listener net.Listener) error {
	for {
		nc, err := listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			time.Sleep(20 * time.Millisecond) // out of descriptors: wait for some to be given back
			continue
		}
		if !s.admit() {
			_ = nc.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(nc, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			nc.Close()
			continue
		}
		go s.serve(nc)
	}
}

func (s *Server) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.MaxConnections > 0 && s.conns >= s.MaxConnections {
		return false
	}
	s.conns++
	return true
}

func (s *Server) release() {
	s.mu.Lock()
	s.conns--
	s.mu.Unlock()
}

type conn struct {
	net    net.Conn
	br     *bufio.Reader
	limit  *headLimit
	server *Server
}

// headLimit bounds what may be read while a request's head is parsed; bodies are unbounded here.
type headLimit struct {
	net.Conn
	left int // -1: no bound
}

var errHeadTooLarge = errors.New("request head too large")

func (l *headLimit) Read(p []byte) (int, error) {
	if l.left < 0 {
		return l.Conn.Read(p)
	}
	if l.left == 0 {
		return 0, errHeadTooLarge
	}
	if len(p) > l.left {
		p = p[:l.left]
	}
	n, err := l.Conn.Read(p)
	l.left -= n
	return n, err
}

func (s *Server) serve(nc net.Conn) {
	limit := &headLimit{Conn: nc, left: -1}
	c := &conn{net: nc, br: bufio.NewReaderSize(limit, 4096), limit: limit, server: s}
	defer s.release()
	hijacked := false
	defer func() {
		if failure := recover(); failure != nil && failure != http.ErrAbortHandler {
			log.Printf("a request failed: %v", failure) // the value, never the request: it may hold secrets
		}
		if !hijacked {
			nc.Close()
		}
	}()
	for {
		_ = nc.SetReadDeadline(time.Now().Add(idleTimeout))
		if _, err := c.br.Peek(1); err != nil {
			return
		}
		_ = nc.SetReadDeadline(time.Now().Add(headerTimeout))
		limit.left = maxHeadBytes
		request, err := http.ReadRequest(c.br)
		limit.left = -1
		if err != nil {
			c.refuse(err)
			return
		}
		_ = nc.SetReadDeadline(time.Time{})
		keep, taken := c.handle(request)
		if taken {
			hijacked = true
			return
		}
		if !keep {
			c.linger()
			return
		}
	}
}

// handle runs one request; it says whether the connection can carry another, or belongs to somebody else now.
func (c *conn) handle(request *http.Request) (keep, taken bool) {
	if request.ProtoMajor != 1 || (request.ProtoMinor >= 1 && request.Host == "") {
		c.refuse(errors.New("unsupported protocol"))
		return false, false
	}
	ctx := &requestContext{Context: context.Background(), conn: c}
	body := &requestBody{ReadCloser: request.Body, conn: c, context: ctx}
	if strings.EqualFold(request.Header.Get("Expect"), "100-continue") && request.ProtoMinor >= 1 && request.ContentLength != 0 {
		body.owesContinue = true
	}
	if request.Body == http.NoBody {
		body.finished = true
	}
	ctx.body = body
	request.Body = body
	request.RemoteAddr = c.net.RemoteAddr().String()
	response := newResponse(c, request, body)
	defer ctx.stop()
	c.server.Handler.ServeHTTP(response, request.WithContext(ctx))
	ctx.stop()
	if response.hijacked {
		return false, true
	}
	if err := response.finish(); err != nil {
		return false, false
	}
	if response.close {
		return false, false
	}
	return body.drain(), false
}

// refuse answers a request that could not be parsed.
func (c *conn) refuse(err error) {
	var timeout net.Error
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || (errors.As(err, &timeout) && timeout.Timeout()) {
		return
	}
	status := "400 Bad Request"
	if errors.Is(err, errHeadTooLarge) {
		status = "431 Request Header Fields Too Large"
	}
	_ = c.net.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c.net, "HTTP/1.1 "+status+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	c.linger()
}

// linger lets the peer read our last answer: closing with unread input would reset the connection under it.
func (c *conn) linger() {
	if half, ok := c.net.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = c.net.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	_, _ = io.CopyN(io.Discard, c.br, 1<<20)
}
