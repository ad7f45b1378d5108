package httpd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// requestBody answers "Expect: 100-continue" when, and only when, the handler first asks for the body.
type requestBody struct {
	io.ReadCloser
	conn         *conn
	context      *requestContext
	owesContinue bool
	finished     bool
	failed       bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	if b.finished {
		return 0, io.EOF
	}
	if b.owesContinue {
		b.owesContinue = false
		_ = b.conn.net.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := io.WriteString(b.conn.net, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.finished = true
	} else if err != nil {
		b.failed = true
	}
	return n, err
}

// Close does nothing: what is left of the body is dealt with when the answer is out.
func (b *requestBody) Close() error { return nil }

// drain reads away a small rest, so that the connection can be used again; it says whether it can.
func (b *requestBody) drain() bool {
	if b.finished {
		return true
	}
	if b.failed || b.owesContinue { // the client may or may not send the body now: nothing can follow
		return false
	}
	_ = b.conn.net.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, err := io.CopyN(io.Discard, b.ReadCloser, maxDrainBytes)
	return errors.Is(err, io.EOF)
}

// requestContext ends when the caller goes away. Watching costs a goroutine and a system call, so it starts
// with the first call of Done; a handler that ends in a millisecond never pays.
type requestContext struct {
	context.Context
	conn *conn
	body *requestBody

	mu       sync.Mutex
	done     chan struct{}
	err      error
	watching chan struct{} // closed when the watching goroutine is gone
	stopped  bool
}

func (c *requestContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		switch {
		case c.stopped:
			c.err = context.Canceled
			close(c.done)
		case c.body.finished && c.conn.br.Buffered() == 0: // while a body is read, its reader notices the end
			c.watching = make(chan struct{})
			go c.watch(c.watching)
		}
	}
	return c.done
}

func (c *requestContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *requestContext) watch(gone chan struct{}) {
	defer close(gone)
	_, err := c.conn.br.Peek(1)
	var timeout net.Error
	if err == nil || (errors.As(err, &timeout) && timeout.Timeout()) {
		return // the next request is there already, or stop has called us off
	}
	c.cancel()
}

func (c *requestContext) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = context.Canceled
		if c.done != nil {
			close(c.done)
		}
	}
}

// stop ends the watch, so that the connection's reader is ours again. It is called more than once.
func (c *requestContext) stop() {
	c.mu.Lock()
	c.stopped = true
	watching := c.watching
	c.watching = nil
	c.mu.Unlock()
	if watching != nil {
		_ = c.conn.net.SetReadDeadline(time.Unix(1, 0))
		<-watching
		_ = c.conn.net.SetReadDeadline(time.Time{})
	}
	c.cancel()
}

var _ context.Context = (*requestContext)(nil)
var _ http.ResponseWriter = (*response)(nil)
