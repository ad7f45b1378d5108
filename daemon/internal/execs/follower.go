package execs

import (
	"slices"
	"time"

	"sandman.dev/daemon/internal/spool"
)

// holdAfterLoss is how long a command still waits for a blocking reader whose connection was lost, and how long its
// standard input stays open: time for a client to come back, and the longest that a dead one can stall a command.
const holdAfterLoss = 30 * time.Second

// Follower reads an exec's two streams behind one wake-up. A blocking follower makes the command wait rather than
// lose what it has not been sent.
type Follower struct {
	Wake chan struct{}

	exec   *Exec
	stdout *spool.Sub
	stderr *spool.Sub
	blocks bool
	timer  *time.Timer
}

// Follow begins to read; blocking ones hold from the given offsets. A follower that was left behind by a lost
// connection lets go: this one has come for it.
func (e *Exec) Follow(blocks bool, stdout, stderr int64) *Follower {
	wake := make(chan struct{}, 1)
	f := &Follower{Wake: wake, exec: e, blocks: blocks}
	f.stdout = e.Stdout.Spool.SubscribeWith(wake)
	f.stderr = e.Stderr.Spool.SubscribeWith(wake)
	if blocks {
		f.Hold(stdout, stderr)
	}
	e.mu.Lock()
	lost := e.lost
	e.lost = nil
	e.followers++
	e.mu.Unlock()
	for _, ghost := range lost {
		if ghost.timer.Stop() {
			ghost.release()
		}
	}
	return f
}

// Hold says up to where the reader has come: what lies behind may be dropped.
func (f *Follower) Hold(stdout, stderr int64) {
	if f.blocks {
		f.stdout.Hold(stdout)
		f.stderr.Hold(stderr)
	}
}

func (f *Follower) release() {
	f.stdout.Close()
	f.stderr.Close()
}

// Leave ends the reading. With a lost connection, what a blocking follower held is kept for a while, so that its
// client finds it when it comes back; an input that nobody feeds any more then ends.
func (f *Follower) Leave(lost bool) {
	e := f.exec
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followers--
	if e.Ended() {
		f.release()
		return
	}
	if !lost {
		f.release()
	}
	e.lost = append(e.lost, f)
	f.timer = time.AfterFunc(holdAfterLoss, func() {
		f.release()
		e.mu.Lock()
		alone := e.followers == 0
		e.lost = slices.DeleteFunc(e.lost, func(other *Follower) bool { return other == f })
		e.mu.Unlock()
		if alone && e.Input != nil {
			e.Input.EOF()
		}
	})
}
