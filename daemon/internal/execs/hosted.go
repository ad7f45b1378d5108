package execs

import (
	"os"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/proc"
)

// What a session needs to run an exec inside its shell.

// Outcome is how a command in a session ended.
type Outcome struct {
	Status      syscall.WaitStatus
	User        time.Duration
	System      time.Duration
	New, Ended  bool
	KilledByUs  bool
	StartedAt   time.Time
	EndedAt     time.Time
	LateOutput  func(*Exec) // takes in what is not in the streams yet; may be nil
	LeftoverTag *proc.Tree  // how its leftovers are found from now on
}

// Refuse ends an exec that its session could not run.
func (e *Exec) Refuse(err error) { e.fail(err) }

// Registry returns where the exec is kept.
func (e *Exec) Registry() *Registry { return e.registry }

// NoteMemory remembers the count of kernel kills before a hosted command runs.
func (e *Exec) NoteMemory() { e.noteMemory() }

// Host makes cancel, which must not block, the way in which the command's time-out is carried out.
func (e *Exec) Host(cancel func()) {
	e.mu.Lock()
	e.canceler = cancel
	e.mu.Unlock()
}

// Feed gives the command its standard input, once somebody reads it.
func (e *Exec) Feed(file *os.File) {
	if e.Spec.StdinMode == StdinData {
		e.Input.mu.Lock()
		if len(e.Request().Stdin) > 0 {
			e.Input.queue = [][]byte{e.Request().Stdin}
		}
		e.Input.eof = true
		e.Input.mu.Unlock()
	}
	e.Input.open(file, false)
}

// NoStderr says that the command has no error stream of its own.
func (e *Exec) NoStderr() { e.Stderr.finish() }

// Complete tells the end of a hosted command. Its time-out, if it came first, has been carried out by now.
func (e *Exec) Complete(o Outcome) {
	e.mu.Lock()
	e.mainDone = true
	timer := e.timer
	e.status, e.wall = o.Status, o.EndedAt.Sub(o.StartedAt)
	e.started = o.StartedAt
	e.usage.Utime = syscall.NsecToTimeval(int64(o.User))
	e.usage.Stime = syscall.NsecToTimeval(int64(o.System))
	e.tree = o.LeftoverTag
	e.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	e.result.SessionNew, e.result.SessionEnded, e.result.SharedUsage = o.New, o.Ended, true
	e.killedByUs = o.KilledByUs
	if o.LateOutput != nil {
		o.LateOutput(e)
	}
	e.settle()
}

// TimedOut says whether the command's time is over.
func (e *Exec) TimedOut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.timedOut
}

// Cancelled says whether the command was to be ended before it began.
func (e *Exec) Cancelled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancelled
}
