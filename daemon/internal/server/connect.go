package server

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/websocket"
	"sandman.dev/daemon/internal/wire"
)

const (
	subprotocol = "sandman.v1"
	// maxMessageBytes is a text message's bound: an exec request's.
	maxMessageBytes = wire.MaxRequestBytes
	// maxChannels of one connection are open at once.
	maxChannels = 1024
	// heartbeat is half of the shortest idle time-out that proxies commonly have.
	heartbeat = 15 * time.Second
	// keptBuffer is what an idle connection keeps of its read buffer.
	keptBuffer = 4 << 10
)

// connection is one client's socket with its channels. Channels write by themselves; one that lags waits alone.
type connection struct {
	server *Server
	socket *websocket.Conn

	mu       sync.Mutex
	channels map[uint32]*channel
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request) error {
	socket, err := websocket.Upgrade(w, r, subprotocol, maxMessageBytes)
	if err != nil {
		return nil // answered
	}
	socket.Share = s.intake.Share()
	defer socket.Share.Release()
	c := &connection{server: s, socket: socket, channels: map[uint32]*channel{}}
	stop := make(chan struct{})
	go c.beat(stop)
	c.read()
	close(stop)
	c.lose()
	return nil
}

// beat tells proxies and clients that the line lives; a dead peer is found by the write that fails.
func (c *connection) beat(stop chan struct{}) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if c.socket.Write(websocket.Text, []byte(`{"op":"heartbeat"}`), nil) != nil {
				c.socket.Abort()
				return
			}
		case <-stop:
			return
		}
	}
}

func (c *connection) read() {
	buffer := make([]byte, 0, keptBuffer)
	for {
		opcode, message, err := c.socket.Read(buffer)
		if err != nil {
			return
		}
		if opcode == websocket.Binary {
			c.input(message)
		} else {
			c.control(message)
		}
		c.socket.Share.Release()
		if cap(message) <= 64<<10 {
			buffer = message
		} else {
			buffer = make([]byte, 0, keptBuffer)
		}
	}
}

func (c *connection) control(message []byte) {
	m, err := wire.DecodeControl(message)
	if err != nil {
		c.fail(m.Channel, err)
		return
	}
	switch m.Op {
	case "ping":
		c.send(`{"op":"pong"}`)
		return
	case "start":
		c.start(m)
		return
	case "attach":
		c.attach(m)
		return
	}
	ch := c.channel(m.Channel)
	if ch == nil {
		if m.Op != "detach" && m.Op != "credit" { // those may cross with the channel's end
			c.fail(m.Channel, &problem.Problem{Slug: "channel-not-open", Title: "No such channel", Status: http.StatusNotFound})
		}
		return
	}
	switch m.Op {
	case "eof":
		if ch.exec.Input != nil {
			ch.exec.Input.EOF()
		}
	case "credit":
		ch.grant(m.Credit)
	case "detach":
		ch.leave()
	case "resize":
		if !ch.exec.Resize(*m.Size) {
			c.fail(m.Channel, &problem.Problem{Slug: "no-terminal", Title: "The exec has no terminal", Status: http.StatusConflict})
		}
	case "signal":
		c.signal(ch, m)
	}
}

func (c *connection) signal(ch *channel, m *wire.Control) {
	sig, err := wire.Signal(m.Signal)
	if err != nil {
		c.fail(m.Channel, err)
		return
	}
	scope, err := wire.DecodeScope(m.Scope)
	if err != nil {
		c.fail(m.Channel, err)
		return
	}
	ch.deliver(order{sig, scope})
}

// input hands a stdin frame to its command; the bytes are copied, as the read buffer is used again.
func (c *connection) input(message []byte) {
	channelID, payload, err := wire.DecodeStdin(message)
	if err != nil {
		slug := "invalid-frame"
		if err == wire.ErrFrameTooLarge {
			slug = "frame-too-large"
		}
		c.fail(channelID, &problem.Problem{Slug: slug, Title: "The binary frame is not valid", Status: http.StatusBadRequest, Detail: err.Error()})
		return
	}
	ch := c.channel(channelID)
	switch {
	case ch == nil: // may cross with the channel's end
	case ch.exec.Input == nil:
		c.fail(channelID, &problem.Problem{Slug: "no-stdin", Title: "The exec was started without standard input", Status: http.StatusConflict})
	case !ch.exec.Input.Write(append([]byte(nil), payload...)):
		c.fail(channelID, &problem.Problem{Slug: "stdin-credit-exceeded", Title: "More input than the credit allows", Status: http.StatusConflict})
		ch.exec.Input.EOF() // what follows would follow a hole
	}
}

func (c *connection) channel(id uint32) *channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.channels[id]
}

// open claims a channel's number before anything runs under it.
func (c *connection) open(id uint32, ch *channel) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, taken := c.channels[id]; taken {
		return &problem.Problem{Slug: "channel-in-use", Title: "The channel's number is in use", Status: http.StatusConflict}
	}
	if len(c.channels) >= maxChannels {
		return &problem.Problem{Slug: "too-many-channels", Title: "The connection has too many channels", Status: http.StatusTooManyRequests, Retryable: true}
	}
	c.channels[id] = ch
	return nil
}

func (c *connection) drop(ch *channel) {
	c.mu.Lock()
	if c.channels[ch.id] == ch {
		delete(c.channels, ch.id)
	}
	c.mu.Unlock()
}

// lose ends every channel with its connection; the execs go on.
func (c *connection) lose() {
	c.mu.Lock()
	open := make([]*channel, 0, len(c.channels))
	for _, ch := range c.channels {
		open = append(open, ch)
	}
	c.mu.Unlock()
	for _, ch := range open {
		ch.cut()
	}
}

func (c *connection) send(text string) { _ = c.socket.Write(websocket.Text, []byte(text), nil) }

// fail tells the client a typed error on a channel.
func (c *connection) fail(channel uint32, err error) {
	p := *problem.Of(err)
	members := map[string]any{"op": "error", "ch": channel}
	for name, value := range p.Members {
		members[name] = value
	}
	p.Members = members
	raw, _ := json.Marshal(&p)
	_ = c.socket.Write(websocket.Text, raw, nil)
}
