package session

import (
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
)

const (
	// maxSessions at once: each is a process and three descriptors.
	maxSessions = 64
	// maxQueued commands wait in one session.
	maxQueued = 256
	// maxRemembered names of sessions that ended by themselves, whose next caller must be told.
	maxRemembered = 1024
)

// Sessions holds the sandbox's sessions by name.
type Sessions struct {
	mu     sync.Mutex
	byName map[string]*Session
	ended  map[string]string // name → why
}

// New returns an empty set.
func New() *Sessions {
	return &Sessions{byName: map[string]*Session{}, ended: map[string]string{}}
}

// isIdentifier says whether a shell can have a variable of this name.
func isIdentifier(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// Submit runs the exec in its session, behind what waits there already; the first use of a name starts it.
func (s *Sessions) Submit(e *execs.Exec) {
	for key := range e.Request().Env {
		if !isIdentifier(key) {
			e.Refuse(problem.Invalid("env", "a session's shell can hold only names of letters, digits and _"))
			return
		}
	}
	name := e.Spec.Session
	s.mu.Lock()
	if why, gone := s.ended[name]; gone {
		delete(s.ended, name)
		s.mu.Unlock()
		e.Refuse(terminated(why))
		return
	}
	session := s.byName[name]
	if session == nil {
		if len(s.byName) >= maxSessions {
			s.mu.Unlock()
			e.Refuse(&problem.Problem{Slug: "too-many-sessions", Title: "Too many sessions are open",
				Status: http.StatusTooManyRequests, Detail: "the bound is " + strconv.Itoa(maxSessions), Retryable: true})
			return
		}
		session = &Session{name: name, user: e.Spec.User, created: time.Now(), owner: s, wake: make(chan struct{}, 1), quit: make(chan struct{})}
		s.byName[name] = session
		go session.run()
	}
	err := session.enqueue(e)
	s.mu.Unlock()
	if err != nil {
		e.Refuse(err)
	}
}

func terminated(why string) *problem.Problem {
	return &problem.Problem{Slug: "session-terminated", Title: "The session has ended", Status: http.StatusConflict,
		Detail: why + "; its state is lost, and the next command begins a new one", Cause: problem.Task}
}

// finished forgets a session; why is told to the next caller of its name, unless somebody was told already.
func (s *Sessions) finished(session *Session, why string) (waiting []*execs.Exec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[session.name] == session {
		delete(s.byName, session.name)
	}
	session.mu.Lock()
	waiting = session.queue
	session.queue, session.closed = nil, true
	session.mu.Unlock()
	if why != "" && len(waiting) == 0 && len(s.ended) < maxRemembered {
		s.ended[session.name] = why
	}
	return waiting
}

// Info is a session in a list.
type Info struct {
	Name      string  `json:"name"`
	PID       int     `json:"pid"`
	Shell     string  `json:"shell"`
	CreatedAt float64 `json:"created_at"`
	Running   *string `json:"running"` // the id of the command that runs
	Queued    int     `json:"queued"`
}

// List returns the live sessions by name.
func (s *Sessions) List() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Info, 0, len(s.byName))
	for _, session := range s.byName {
		list = append(list, session.info())
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// Delete ends a session: its running command is killed, waiting ones are refused, its shell goes. Jobs that earlier
// commands left in the background stay; they are reached by those commands' ids. False: no such session.
func (s *Sessions) Delete(name string) bool {
	s.mu.Lock()
	_, ended := s.ended[name]
	delete(s.ended, name)
	session := s.byName[name]
	if session != nil {
		delete(s.byName, name)
	}
	s.mu.Unlock()
	if session != nil {
		session.stop()
	}
	return session != nil || ended
}

// Shutdown removes what sessions keep in the file system. The daemon is about to end; every process is gone already.
func (s *Sessions) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.byName {
		session.mu.Lock()
		if session.shell != nil {
			os.RemoveAll(session.shell.folder)
		}
		session.mu.Unlock()
	}
}
