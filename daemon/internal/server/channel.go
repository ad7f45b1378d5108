package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/spool"
	"sandman.dev/daemon/internal/websocket"
	"sandman.dev/daemon/internal/wire"
)

// channel carries one exec over one connection: its output within the credit, then its end, once.
type channel struct {
	connection *connection
	id         uint32
	exec       *execs.Exec
	follower   *execs.Follower
	window     int64
	offsets    [2]int64 // sent so far, of stdout and stderr

	mu     sync.Mutex
	orders []order // signals on their way, the first of them being delivered
	credit int64
	quit   chan struct{}
	left   bool // by detach
	cutOff bool // by the connection's end
}

// order is a signal that the client asked for.
type order struct {
	signal syscall.Signal
	scope  execs.Scope
}

// deliver sends signals one after the other, in the order they came, without the connection's waiting: killing a tree may
// take a while, and the channel's end tells how it went. One that waits already stands for its repetitions, as in the kernel.
func (ch *channel) deliver(o order) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.orders) > 1 && slices.Contains(ch.orders[1:], o) {
		return
	}
	ch.orders = append(ch.orders, o)
	if len(ch.orders) > 1 {
		return
	}
	go func() {
		for more := true; more; {
			ch.exec.Signal(o.signal, o.scope)
			ch.mu.Lock()
			ch.orders = ch.orders[1:]
			if more = len(ch.orders) > 0; more {
				o = ch.orders[0]
			}
			ch.mu.Unlock()
		}
	}()
}

func (c *connection) start(m *wire.Control) {
	ch := &channel{connection: c, id: m.Channel, window: m.Credit, credit: m.Credit, quit: make(chan struct{})}
	if err := c.open(m.Channel, ch); err != nil {
		c.fail(m.Channel, err)
		return
	}
	e, attached, err := c.server.Execs.Start(m.Spec)
	if err != nil {
		c.drop(ch)
		c.fail(m.Channel, err)
		return
	}
	ch.begin(e, attached, !m.Drop, m.Follow)
}

func (c *connection) attach(m *wire.Control) {
	e, err := c.server.Execs.Get(m.ID)
	if err != nil {
		c.fail(m.Channel, err)
		return
	}
	for _, stream := range []struct {
		name   string
		spool  *spool.Spool
		offset int64
	}{{"stdout", e.Stdout.Spool, m.StdoutOffset}, {"stderr", e.Stderr.Spool, m.StderrOffset}} {
		if total := stream.spool.State().Total; stream.offset > total {
			c.fail(m.Channel, (&problem.Problem{Slug: "offset-out-of-range", Title: "The stream has not come so far",
				Status: http.StatusRequestedRangeNotSatisfiable}).With("stream", stream.name).With("total_bytes", total))
			return
		}
	}
	ch := &channel{connection: c, id: m.Channel, window: m.Credit, credit: m.Credit, quit: make(chan struct{}),
		offsets: [2]int64{m.StdoutOffset, m.StderrOffset}}
	if err := c.open(m.Channel, ch); err != nil {
		c.fail(m.Channel, err)
		return
	}
	ch.begin(e, true, !m.Drop, true)
}

// begin announces the exec and follows it on a goroutine of its own.
func (ch *channel) begin(e *execs.Exec, attached, blocks, follow bool) {
	c := ch.connection
	ch.exec = e
	if e.Ended() {
		if _, failure := e.Outcome(); failure != nil {
			c.drop(ch)
			c.fail(ch.id, wire.Failure(e, failure))
			return
		}
	}
	out := fmt.Appendf(nil, `{"op":"started","ch":%d,"id":"%s","attached":%t,"pid":`, ch.id, e.ID, attached)
	if pid, _ := e.PID(); pid != 0 {
		out = strconv.AppendInt(out, int64(pid), 10)
	} else {
		out = append(out, "null"...)
	}
	if e.Input != nil {
		taken, queued := e.Input.Taken()
		out = fmt.Appendf(out, `,"stdin_offset":%d,"stdin_credit":%d`, taken, max(execs.StdinWindow-queued, 0))
	}
	if !follow {
		c.drop(ch)
		if !attached && e.Input != nil && e.Spec.PTY == nil {
			e.Input.EOF() // nobody will feed it
		}
		_ = c.socket.Write(websocket.Text, append(out, '}'), nil)
		return
	}
	ch.follower = e.Follow(blocks, ch.offsets[0], ch.offsets[1])
	if e.Input != nil {
		e.Input.OnCredit(ch, func(n int) {
			c.send(`{"op":"stdin_credit","ch":` + strconv.FormatUint(uint64(ch.id), 10) + `,"bytes":` + strconv.Itoa(n) + `}`)
		})
	}
	_ = c.socket.Write(websocket.Text, append(out, '}'), nil)
	go ch.follow()
}

// follow sends what there is and waits for more, until the end is told or the channel is left.
func (ch *channel) follow() {
	defer ch.end()
	spools := [2]*spool.Spool{ch.exec.Stdout.Spool, ch.exec.Stderr.Spool}
	for {
		more := false
		for i, s := range spools {
			sent, err := ch.sendSome(i, s)
			if err != nil {
				ch.connection.socket.Abort()
				return
			}
			more = more || sent
		}
		if more {
			select {
			case <-ch.quit:
				return
			default:
				continue
			}
		}
		if ch.exec.Ended() && ch.complete(spools) {
			ch.tellEnd()
			return
		}
		select {
		case <-ch.follower.Wake:
		case <-ch.quit:
			return
		case <-ch.exec.Done():
			if ch.complete(spools) {
				continue
			}
			select { // ended, but output waits for credit
			case <-ch.follower.Wake:
			case <-ch.quit:
				return
			}
		}
	}
}

func (ch *channel) complete(spools [2]*spool.Spool) bool {
	for i, s := range spools {
		if state := s.State(); state.End < 0 || ch.offsets[i] < state.End {
			return false
		}
	}
	return true
}

var outputBuffers = sync.Pool{New: func() any { b := make([]byte, wire.MaxOutputPayload); return &b }}

// sendSome sends one frame of a stream, if it has bytes and the channel credit.
func (ch *channel) sendSome(index int, s *spool.Spool) (bool, error) {
	offset := ch.offsets[index]
	state := s.State()
	end := state.Total
	if state.End >= 0 {
		end = state.End
	}
	if offset >= end {
		return false, nil
	}
	ch.mu.Lock()
	allowed := min(ch.credit, wire.MaxOutputPayload, end-offset)
	ch.mu.Unlock()
	if allowed <= 0 {
		return false, nil
	}
	buffer := outputBuffers.Get().(*[]byte)
	defer outputBuffers.Put(buffer)
	n, next, err := s.ReadAt((*buffer)[:allowed], offset)
	if err != nil {
		return false, err
	}
	if n == 0 {
		next = min(next, end)
		name := [2]string{"stdout", "stderr"}[index]
		ch.offsets[index] = next
		gap := fmt.Appendf(nil, `{"op":"gap","ch":%d,"stream":"%s","from":%d,"to":%d}`, ch.id, name, offset, next)
		return true, ch.connection.socket.Write(websocket.Text, gap, nil)
	}
	var head [wire.OutputHeader]byte
	header := wire.AppendOutput(head[:0], byte(wire.KindStdout+index), ch.id, offset)
	if err := ch.connection.socket.Write(websocket.Binary, header, (*buffer)[:n]); err != nil {
		return false, err
	}
	ch.offsets[index] = next
	ch.mu.Lock()
	ch.credit -= int64(n)
	ch.mu.Unlock()
	ch.follower.Hold(ch.held(0), ch.held(1))
	return true, nil
}

// held is up to where the client surely has the stream: what is under way may be lost with the connection.
func (ch *channel) held(index int) int64 {
	output := [2]*execs.Output{ch.exec.Stdout, ch.exec.Stderr}[index]
	return max(ch.offsets[index]-min(ch.window, 1<<20, output.Spool.Lag()), 0)
}

func (ch *channel) tellEnd() {
	out := strconv.AppendUint([]byte(`{"op":"exit","ch":`), uint64(ch.id), 10)
	if _, failure := ch.exec.Outcome(); failure != nil {
		ch.connection.drop(ch)
		ch.connection.fail(ch.id, wire.Failure(ch.exec, failure))
		return
	}
	out = wire.AppendResultFields(append(out, ','), ch.exec)
	ch.connection.drop(ch) // first: the client may use the number again when it has read the end
	_ = ch.connection.socket.Write(websocket.Text, append(out, '}'), nil)
}

// end lets go of the exec.
func (ch *channel) end() {
	ch.connection.drop(ch)
	if ch.exec.Input != nil {
		ch.exec.Input.OffCredit(ch)
	}
	ch.mu.Lock()
	detached := ch.left
	ch.mu.Unlock()
	ch.follower.Leave(!detached)
}

func (ch *channel) grant(n int64) {
	ch.mu.Lock()
	ch.credit = min(ch.credit+n, wire.MaxCredit)
	ch.mu.Unlock()
	if ch.follower != nil {
		select {
		case ch.follower.Wake <- struct{}{}:
		default:
		}
	}
}

// leave ends the channel at the client's wish.
func (ch *channel) leave() { ch.stop(true) }

// cut ends the channel with its connection.
func (ch *channel) cut() { ch.stop(false) }

func (ch *channel) stop(left bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.cutOff {
		return
	}
	ch.cutOff, ch.left = true, left
	close(ch.quit)
}
