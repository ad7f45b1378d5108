package execs

import (
	"os"
	"syscall"
	"time"

	"sandman.dev/daemon/internal/proc"
	"sandman.dev/daemon/internal/pty"
)

func timeNow() time.Time { return time.Now() }

// terminal is the daemon's side of an exec's terminal.
type terminal struct{ file *os.File }

// launchTTY starts a command on a terminal of its own: one output stream, input as typed.
func (e *Exec) launchTTY(c *proc.Command, spec *Spec) error {
	master, slave, err := pty.Open(e.Spec.PTY.Rows, e.Spec.PTY.Cols, c.User)
	if err != nil {
		return &proc.StartError{Reason: proc.NoTerminal, Detail: err.Error()}
	}
	input, err := syscall.Dup(master) // one descriptor to read, one to write: each is closed when its side ends
	if err != nil {
		syscall.Close(master)
		syscall.Close(slave)
		return &proc.StartError{Reason: proc.Resource, Detail: err.Error()}
	}
	syscall.CloseOnExec(input)
	p := &pipes{child: []int{slave}}
	c.TTY = true
	c.Files = []uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	p.own = []int{master}
	e.mu.Lock()
	e.terminal = &terminal{file: os.NewFile(uintptr(input), "terminal")}
	e.mu.Unlock()
	err = e.start(c, p, func() {
		_ = e.Stdout.Open(master, true, nil)
		e.Stderr.finish()
		if e.Input != nil {
			if len(spec.Stdin) > 0 {
				e.Input.queue = [][]byte{spec.Stdin}
			}
			e.Input.eof = spec.StdinMode != StdinStream
			e.Input.open(e.terminal.file, true)
		}
	})
	if err != nil {
		e.mu.Lock()
		e.terminal.file.Close()
		e.terminal = nil
		e.mu.Unlock()
	}
	return err
}

// Resize sets the terminal's size; false when the exec has none.
func (e *Exec) Resize(size Size) bool {
	e.mu.Lock()
	t := e.terminal
	e.mu.Unlock()
	if t == nil {
		return false
	}
	raw, err := t.file.SyscallConn()
	if err != nil {
		return true // it has ended: nothing to resize, and no error of the caller's
	}
	_ = raw.Control(func(fd uintptr) { _ = pty.Resize(int(fd), size.Rows, size.Cols) })
	return true
}
