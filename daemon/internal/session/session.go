package session

import (
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/proc"
)

// Session is a shell with the commands that wait for it. One goroutine runs them in order.
type Session struct {
	name    string
	user    string
	created time.Time
	owner   *Sessions
	wake    chan struct{}
	quit    chan struct{}

	mu      sync.Mutex
	queue   []*execs.Exec
	running *execs.Exec
	shell   *shell
	closed  bool
	once    sync.Once
}

func (s *Session) enqueue(e *execs.Exec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return terminated("the session was just ending")
	case e.Spec.User != "" && e.Spec.User != s.user:
		return &problem.Problem{Slug: "session-user", Title: "The session belongs to another user", Status: http.StatusConflict}
	case len(s.queue) >= maxQueued:
		return &problem.Problem{Slug: "session-busy", Title: "Too many commands wait in the session",
			Status: http.StatusTooManyRequests, Detail: "the bound is " + strconv.Itoa(maxQueued), Retryable: true}
	}
	s.queue = append(s.queue, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

func (s *Session) next() *execs.Exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = nil
	if len(s.queue) == 0 {
		return nil
	}
	s.running = s.queue[0]
	s.queue = s.queue[1:]
	return s.running
}

func (s *Session) info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := Info{Name: s.name, CreatedAt: float64(s.created.UnixMicro()) / 1e6, Queued: len(s.queue)}
	if s.shell != nil {
		info.PID = s.shell.process.PID
		info.Shell = "sh"
		if s.shell.dialect.status == bash.status {
			info.Shell = "bash"
		}
	}
	if s.running != nil {
		info.Running = &s.running.ID
	}
	return info
}

func (s *Session) stop() { s.once.Do(func() { close(s.quit) }) }

// run serves the queue until the shell has ended or the session is deleted.
func (s *Session) run() {
	why := s.serve()
	for _, e := range s.owner.finished(s, why) {
		if why == "" {
			why = "it was deleted"
		}
		e.Refuse(terminated(why))
	}
}

// serve returns why the session ended; empty: by wish, or it never began.
func (s *Session) serve() string {
	for {
		e := s.next()
		if e == nil {
			var exited chan syscall.WaitStatus
			if s.shell != nil {
				exited = s.shell.exited
			}
			select {
			case <-s.wake:
			case <-s.quit:
				if s.shell != nil {
					s.shell.close()
				}
				return ""
			case status := <-exited:
				s.shell.cleanup()
				return "its shell ended between commands (" + describe(status) + ")"
			}
			continue
		}
		if e.Cancelled() {
			e.Refuse(&problem.Problem{Slug: "exec-cancelled", Title: "The command was cancelled before it began", Status: http.StatusConflict})
			continue
		}
		fresh := s.shell == nil
		if fresh {
			started, err := startShell(e)
			if err != nil {
				e.Refuse(err)
				return ""
			}
			s.mu.Lock()
			s.shell = started
			s.mu.Unlock()
		} else if e.Spec.Cwd != "" {
			if err := s.checkDir(e); err != nil {
				e.Refuse(err)
				continue
			}
		}
		if ended, why := s.perform(e, fresh); ended {
			return why
		}
	}
}

// checkDir refuses a later command's cwd before anything of it runs.
func (s *Session) checkDir(e *execs.Exec) error {
	who, err := e.Registry().Identify(s.user)
	if err != nil {
		return err
	}
	if who.IsOwn() {
		who = nil
	}
	if e.Spec.Cwd[0] != '/' { // where the shell is now, only the shell knows
		return problem.Invalid("cwd", "must be absolute in a session that has begun; or use cd")
	}
	return proc.CheckDir(who, e.Request().Cwd)
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal " + strconv.Itoa(int(status.Signal()))
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}
