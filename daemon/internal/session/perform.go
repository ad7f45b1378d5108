package session

import (
	"io"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/proc"
)

// How often it is looked for a report that came another way than it should.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// perform runs one command in the shell; ended says that the shell is gone, and why is for the next caller.
func (s *Session) perform(e *execs.Exec, fresh bool) (ended bool, why string) {
	sh := s.shell
	files, err := sh.open(e, fresh)
	if err != nil {
		e.Refuse(err)
		if fresh {
			sh.close()
			return true, ""
		}
		return false, ""
	}
	defer files.remove()
	sh.counter++
	sh.drop()
	tree := &proc.Tree{Tag: sh.tag}
	if sh.retags {
		tree.Tag = proc.NewTag()
		_ = proc.Retag(sh.process.PID, tree.Tag)
	} else { // another user's shell, without the right to retag it: tell its processes by what was there before
		tree.Spare = tree.Snapshot()
		delete(tree.Spare, sh.process.PID)
	}
	user, system := proc.CPUTime(sh.process.PID)
	outcome := execs.Outcome{New: fresh, StartedAt: time.Now()}
	cancel := make(chan struct{}, 1)
	e.Host(func() { cancel <- struct{}{} })
	e.NoteMemory()
	e.Begin(tree)
	text := sh.lines(files)
	sh.written.Store(false)
	go func() { // a long text fills the pipe; the shell's end ends this
		_, _ = io.WriteString(sh.control, text)
		sh.written.Store(true)
	}()
	defer sh.forget()
	wait, idle := firstLook, 0
	look := time.NewTimer(wait)
	defer look.Stop()
	files.start(e)

	finish := func() {
		outcome.EndedAt = time.Now()
		leftovers := *tree
		leftovers.Except = sh.process.PID
		outcome.LeftoverTag = &leftovers
		afterUser, afterSystem := proc.CPUTime(sh.process.PID)
		outcome.User, outcome.System = max(afterUser-user, 0), max(afterSystem-system, 0)
	}
	died := func(status syscall.WaitStatus) {
		finish()
		outcome.Status, outcome.Ended = status, true
		outcome.User, outcome.System = 0, 0
		outcome.KilledByUs = sh.process.Killed()
		outcome.LateOutput = sh.strays
		e.Complete(outcome)
		sh.cleanup()
	}
	for {
		select {
		case r := <-sh.status:
			if r.counter != sh.counter {
				continue
			}
			if sh.retags {
				_ = proc.Retag(sh.process.PID, sh.tag)
			}
			finish()
			sh.last = r.status
			outcome.Status = syscall.WaitStatus(r.status << 8)
			if r.status > 128 && r.status <= 192 && e.TimedOut() {
				outcome.Status = syscall.WaitStatus(r.status - 128) // the command was ended by our signal
			}
			e.Complete(outcome)
			return false, ""
		case status := <-sh.exited:
			select { // it may have finished the command first
			case r := <-sh.status:
				if r.counter == sh.counter {
					sh.exited <- status
					sh.status <- r
					continue
				}
			default:
			}
			died(status)
			return true, "its shell ended with a command (" + describe(status) + ")"
		case <-look.C:
			if r, found := sh.look(); found {
				sh.shadowed = true
				time.Sleep(firstLook) // the pipe's report, if there is one, was written first
				select {
				case sh.status <- r:
				default:
				}
			} else if idle++; !sh.idle() {
				idle = 0
			} else if idle > 2 { // a trap has eaten the report: what the command's status was, nobody knows any more
				sh.process.Signal(syscall.SIGKILL)
			}
			wait = min(2*wait, lastLook)
			look.Reset(wait)
		case <-cancel:
			s.interrupt(sh, tree, e.Spec.Grace)
		case <-s.quit:
			tree.Kill()
			sh.process.Signal(syscall.SIGKILL)
			died(<-sh.exited)
			return true, ""
		}
	}
}

// lastWords is how long processes may take to follow TERM when the shell could not be interrupted.
const lastWords = 300 * time.Millisecond

// interrupt ends the running command and keeps the shell if it can. INT makes a shell abandon the rest of the text
// once its program has died of it. A shell that has not reported within the grace is given up: it would only go on
// with the text's next line, which must never run.
func (s *Session) interrupt(sh *shell, tree *proc.Tree, grace time.Duration) {
	children := *tree
	children.Except = sh.process.PID
	within := func(end time.Time, done func() bool) bool {
		for wait := time.Millisecond; !done(); wait = min(2*wait, 20*time.Millisecond) {
			if !time.Now().Before(end) {
				return false
			}
			time.Sleep(wait)
		}
		return true
	}
	gone := func() bool { return !children.Alive() }
	end := time.Now().Add(grace)
	// Jobs in the background do not hear INT, but the programs in them do: such a job would go on with its next line.
	// With job control they are groups of their own, and the shell must not see its own job stop.
	children.StopDeaf(syscall.SIGINT, sh.process.PID)
	sh.process.Signal(syscall.SIGINT)
	children.Signal(syscall.SIGINT)
	_, _ = io.WriteString(sh.control, sh.reportLines()) // an interrupted shell has thrown its input away
	reported := func() bool {
		if len(sh.exited) > 0 || len(sh.status) > 0 {
			return true
		}
		_, found := sh.look()
		return found
	}
	if within(end, reported) {
		if !gone() {
			children.Signal(syscall.SIGTERM)
			children.Signal(syscall.SIGCONT)
			if !within(end, gone) {
				children.Kill()
			}
		}
		return
	}
	sh.process.Signal(syscall.SIGSTOP)
	children.Signal(syscall.SIGTERM)
	children.Signal(syscall.SIGCONT)
	within(time.Now().Add(lastWords), gone)
	sh.process.Signal(syscall.SIGKILL)
	children.Kill()
}

// drop throws away what the shell itself printed between commands.
func (s *shell) drop() { s.readStray(func([]byte) {}) }

// strays takes what the shell printed on its way out, which is where an exit trap's words are, into the command's output.
func (s *shell) strays(e *execs.Exec) { s.readStray(e.Stdout.Spool.Append) }

func (s *shell) readStray(f func([]byte)) {
	raw, err := s.stray.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		buffer := make([]byte, 4096)
		for range 32 {
			n, err := syscall.Read(int(fd), buffer) // does not block
			if err != nil || n <= 0 {
				return
			}
			f(buffer[:n])
		}
	})
}
