package execs

import (
	"syscall"
	"time"

	"sandman.dev/daemon/internal/proc"
)

// expire ends a command whose time is over: TERM to its whole tree, KILL when the grace has passed. The result is
// told only when nothing of the tree is left.
func (e *Exec) expire() {
	e.mu.Lock()
	if e.mainDone {
		e.mu.Unlock()
		return
	}
	e.timedOut = true
	tree, gone, canceler := e.tree, e.mainGone, e.canceler
	e.mu.Unlock()
	if canceler != nil {
		canceler()
		return
	}
	terminate(tree, e.Spec.Grace)
	<-gone
	e.settle()
}

// terminate asks the tree to end, waits for it at most the grace, and then kills what is left.
func terminate(tree *proc.Tree, grace time.Duration) {
	tree.Signal(syscall.SIGTERM)
	tree.Signal(syscall.SIGCONT) // a stopped process takes no TERM
	wait := time.Millisecond
	for end := time.Now().Add(grace); time.Now().Before(end); {
		time.Sleep(min(wait, time.Until(end)))
		wait = min(2*wait, 50*time.Millisecond)
		if !tree.Alive() {
			return
		}
	}
	tree.Kill()
}

// Scope is how far a signal reaches.
type Scope string

// The scopes.
const (
	ScopeProcess Scope = "process"
	ScopeGroup   Scope = "group"
	ScopeTree    Scope = "tree"
)

// Signal sends to the command and says to how many processes; 0 means that none is left, which is no error. An
// ended exec's leftovers can still be reached through the scope tree.
func (e *Exec) Signal(sig syscall.Signal, scope Scope) int {
	e.mu.Lock()
	tree := e.tree
	if tree == nil && (sig == syscall.SIGKILL || sig == syscall.SIGTERM || sig == syscall.SIGINT) {
		e.cancelled = true // it waits for its turn in a session, and then does not begin
	}
	e.mu.Unlock()
	if tree == nil {
		return 0
	}
	count := func(sent bool) int {
		if sent {
			return 1
		}
		return 0
	}
	switch {
	case scope == ScopeTree && sig == syscall.SIGKILL:
		had := tree.Signal(0)
		if had == 0 {
			return 0
		}
		if tree.Main != nil && !tree.Main.Ended() {
			tree.Main.MarkKilled()
		}
		tree.Kill()
		return had
	case scope == ScopeTree || tree.Main == nil:
		return tree.Signal(sig)
	case scope == ScopeGroup:
		return count(tree.Main.SignalGroup(sig))
	default:
		return count(tree.Main.Signal(sig))
	}
}
