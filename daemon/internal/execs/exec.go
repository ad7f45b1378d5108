package execs

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/proc"
)

// Exec is one command, from its acceptance until its record is dropped.
type Exec struct {
	ID       string
	Sequence int64 // orders execs by their acceptance
	Spec     *Spec // as its record keeps it; see Request
	Created  time.Time
	Stdout   *Output
	Stderr   *Output
	Input    *Stdin // nil: standard input is at its end from the start

	print    [32]byte
	probe    bool // the service's own
	registry *Registry
	done     chan struct{} // closed when the exec has ended; result and failure are readable then

	mu         sync.Mutex
	request    *Spec // whole; nil: it has served
	tree       *proc.Tree
	started    time.Time
	mainDone   bool
	timedOut   bool
	mainGone   chan struct{} // closed when the main process's status is known, while a kill is under way
	timer      *time.Timer
	status     syscall.WaitStatus
	usage      syscall.Rusage
	wall       time.Duration
	oomFrom    int64
	oomSeen    bool
	terminal   *terminal
	followers  int
	lost       []*Follower // whose connections were lost, and which are still held for
	cancelled  bool        // signalled before its turn
	killedByUs bool        // a hosted command's shell was
	canceler   func()      // how a session stops its command; nil: by the tree

	result  Result
	failure error
}

// Result is how a command ended. Only what was observed is in it.
type Result struct {
	ExitCode    int
	Signal      int // 0: none
	TimedOut    bool
	OOMKilled   bool
	StdoutBytes int64
	StderrBytes int64
	Wall        time.Duration
	User        time.Duration
	System      time.Duration
	MaxRSS      int64
	Started     time.Time
	Ended       time.Time

	SessionNew   bool // the command began a fresh shell
	SessionEnded bool // the command ended its session's shell
	SharedUsage  bool // max_rss could not be told from that of the session; user and system are in ticks
}

// Done is closed when the exec has ended or failed to start.
func (e *Exec) Done() <-chan struct{} { return e.done }

// Ended says whether Done is closed.
func (e *Exec) Ended() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Outcome returns the result, or why nothing was run. Call it only when the exec has ended.
func (e *Exec) Outcome() (*Result, error) { return &e.result, e.failure }

// PID returns the main process's, or 0 before it was started, and when it was.
func (e *Exec) PID() (int, time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tree == nil || e.tree.Main == nil {
		return 0, e.started
	}
	return e.tree.Main.PID, e.started
}

// Begin notes that the command runs now; its timeout counts from here.
func (e *Exec) Begin(tree *proc.Tree) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tree = tree
	e.mainGone = make(chan struct{})
	if e.started.IsZero() {
		e.started = time.Now()
	}
	if e.Spec.Timeout > 0 && !e.mainDone {
		e.timer = time.AfterFunc(e.Spec.Timeout-time.Since(e.started), e.expire)
	}
}

// mainEnded takes the main process's status; it runs on the reaper and must not block.
func (e *Exec) mainEnded(status syscall.WaitStatus, usage syscall.Rusage) {
	e.mu.Lock()
	e.mainDone = true
	e.status, e.usage, e.wall = status, usage, time.Since(e.started)
	killing, timer, gone := e.timedOut, e.timer, e.mainGone
	e.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	if killing {
		close(gone) // whoever kills the tree tells the end when the tree is gone
		return
	}
	if e.terminal != nil || e.Stdout.Pending()+e.Stderr.Pending() > readBytes {
		go e.settle() // more than a moment's work: the reaper has others to serve
		return
	}
	e.settle()
}

// settle pins the output's end and tells the result. It runs once.
func (e *Exec) settle() {
	e.result.StdoutBytes = e.Stdout.Drain()
	e.result.StderrBytes = e.Stderr.Drain()
	if e.Input != nil {
		e.Input.close()
	}
	e.mu.Lock()
	if e.terminal != nil {
		e.terminal.file.Close()
	}
	e.mu.Unlock()
	r := &e.result
	r.Started, r.Ended = e.started, e.started.Add(e.wall)
	r.Wall, r.TimedOut = e.wall, e.timedOut
	r.User = time.Duration(e.usage.Utime.Nano())
	r.System = time.Duration(e.usage.Stime.Nano())
	r.MaxRSS = e.usage.Maxrss << 10
	if e.status.Signaled() {
		r.Signal = int(e.status.Signal())
		r.ExitCode = 128 + r.Signal
	} else {
		r.ExitCode = e.status.ExitStatus()
	}
	killed := e.killedByUs || (e.tree != nil && e.tree.Main != nil && e.tree.Main.Killed())
	if r.ExitCode == 137 && !killed && !r.TimedOut {
		r.OOMKilled = e.oomKilled()
	}
	e.finish()
}

// Request is the whole request until the command has been started, and then what is kept of it.
func (e *Exec) Request() *Spec {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.request != nil {
		return e.request
	}
	return e.Spec
}

// Served lets go of the request: nothing of it is needed any more.
func (e *Exec) Served() {
	e.mu.Lock()
	e.request = nil
	e.mu.Unlock()
}

func (e *Exec) finish() {
	e.Served()
	close(e.done)
	e.registry.ended(e)
}

// fail ends an exec that never ran.
func (e *Exec) fail(err error) {
	var start *proc.StartError
	if errors.As(err, &start) && len(start.Detail) > keptPath { // it names a program or folder, of whatever length
		short := *start
		short.Detail = strings.Clone(start.Detail[:keptPath]) + "…"
		err = &short
	}
	e.failure = err
	e.Stdout.finish()
	e.Stderr.finish()
	if e.Input != nil {
		e.Input.close()
	}
	e.finish()
}

// noteMemory remembers the count of kernel kills before the command runs.
func (e *Exec) noteMemory() { e.oomFrom, e.oomSeen = proc.OOMKills() }

func (e *Exec) oomKilled() bool {
	now, seen := proc.OOMKills()
	return seen && e.oomSeen && now > e.oomFrom
}
