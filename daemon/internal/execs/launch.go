package execs

import (
	"os"
	"strings"
	"sync"
	"syscall"

	"sandman.dev/daemon/internal/proc"
)

// launch starts a one-shot command. On an error nothing of it has run.
func (e *Exec) launch(spec *Spec) error {
	r := e.registry
	who, err := r.Identify(spec.User)
	if err != nil {
		return err
	}
	c := &proc.Command{Dir: r.Dir(spec.Cwd), OnEnd: e.mainEnded}
	if !who.IsOwn() {
		c.User = who
	}
	var pathList string
	c.Env, pathList = r.environ.For(spec, who)
	if c.Path, c.Argv, err = program(spec, r.shell, pathList, c.Dir); err != nil {
		if dirErr := proc.CheckDir(c.User, c.Dir); dirErr != nil {
			return dirErr
		}
		return err
	}
	e.noteMemory()
	if spec.PTY != nil {
		return e.launchTTY(c, spec)
	}
	return e.launchPipes(c, spec)
}

func program(spec *Spec, shell, pathList, dir string) (string, []string, error) {
	if spec.Argv != nil {
		path, err := proc.FindProgram(spec.Argv[0], pathList, dir)
		return path, spec.Argv, err
	}
	if spec.Shell != "" {
		shell = spec.Shell
	}
	path, err := proc.FindShell(shell, pathList, dir)
	if err != nil {
		return "", nil, err
	}
	return path, proc.ShellArgv(path, spec.Command), nil
}

// pipes are the descriptors of one start: the child's ends, closed here when it has them, and ours.
type pipes struct{ child, own []int }

func (p *pipes) closeChild() {
	for _, fd := range p.child {
		syscall.Close(fd)
	}
	p.child = nil
}

func (p *pipes) closeAll() {
	p.closeChild()
	for _, fd := range p.own {
		syscall.Close(fd)
	}
	p.own = nil
}

// make returns a pipe's two ends; ours is the non-blocking one.
func (p *pipes) make(weRead bool) (child, own int, err error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return 0, 0, &proc.StartError{Reason: proc.Resource, Detail: "no pipe could be made: " + err.Error(), Errno: err.(syscall.Errno)}
	}
	child, own = ends[1], ends[0]
	if !weRead {
		child, own = ends[0], ends[1]
	}
	_ = syscall.SetNonblock(own, true)
	p.child = append(p.child, child)
	p.own = append(p.own, own)
	return child, own, nil
}

func (e *Exec) launchPipes(c *proc.Command, spec *Spec) error {
	var p pipes
	stdin := emptyInput()
	ownIn, rest := -1, spec.Stdin
	var err error
	if e.Input != nil {
		if stdin, ownIn, err = p.make(false); err != nil {
			p.closeAll()
			return err
		}
		if len(rest) > 0 { // what fits is there before the command starts
			if n, err := syscall.Write(ownIn, rest); err == nil {
				rest = rest[n:]
			}
		}
	}
	stdout, ownOut, err := p.make(true)
	if err != nil {
		p.closeAll()
		return err
	}
	stderr, ownErr := stdout, -1
	if !e.Spec.MergeStderr {
		if stderr, ownErr, err = p.make(true); err != nil {
			p.closeAll()
			return err
		}
	}
	c.Files = []uintptr{uintptr(stdin), uintptr(stdout), uintptr(stderr)}
	return e.start(c, &p, func() {
		_ = e.Stdout.Open(ownOut, false, nil)
		if ownErr >= 0 {
			_ = e.Stderr.Open(ownErr, false, nil)
		} else {
			e.Stderr.finish()
		}
		if ownIn >= 0 {
			e.feed(ownIn, rest)
		}
	})
}

// feed sends the rest of given input, or waits for a socket's.
func (e *Exec) feed(fd int, rest []byte) {
	if e.Spec.StdinMode == StdinData {
		if len(rest) == 0 {
			syscall.Close(fd)
			e.Input.close()
			return
		}
		e.Input.queue, e.Input.eof = [][]byte{rest}, true
	}
	e.Input.open(os.NewFile(uintptr(fd), "stdin"), false)
}

// start forks. The streams are opened first, so that the end finds them whenever it comes.
func (e *Exec) start(c *proc.Command, p *pipes, open func()) error {
	e.mu.Lock()
	e.started = timeNow()
	e.mu.Unlock()
	gate := &sync.Mutex{}
	gate.Lock()
	onEnd := c.OnEnd
	c.OnEnd = func(status syscall.WaitStatus, usage syscall.Rusage) {
		gate.Lock() // until the streams are open and the tree is known
		gate.Unlock()
		onEnd(status, usage)
	}
	process, err := proc.Start(c)
	p.closeChild()
	if err != nil {
		p.closeAll()
		return err
	}
	open()
	e.Begin(&proc.Tree{Tag: process.Tag, Leader: process.PID, Main: process})
	gate.Unlock()
	return nil
}

var (
	emptyOnce sync.Once
	emptyFD   int
)

// emptyInput is a descriptor at its end: /dev/null, or in an image without one a pipe that nobody writes.
func emptyInput() int {
	emptyOnce.Do(func() {
		var info syscall.Stat_t
		fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err == nil && syscall.Fstat(fd, &info) == nil && info.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			emptyFD = fd
			return
		}
		var ends [2]int
		if syscall.Pipe2(ends[:], syscall.O_CLOEXEC) == nil {
			syscall.Close(ends[1])
			emptyFD = ends[0]
		}
	})
	return emptyFD
}

// Dir resolves a request's working directory; no check is made, the kernel makes it as the user.
func (r *Registry) Dir(cwd string) string {
	switch {
	case cwd == "":
		return r.config.Workdir
	case strings.HasPrefix(cwd, "/"):
		return cwd
	default:
		return r.config.Workdir + "/" + cwd
	}
}

// Identify resolves who a command runs as.
func (r *Registry) Identify(user string) (*proc.Identity, error) {
	if user == "" {
		if r.config.User == "" {
			return r.own, nil
		}
		user = r.config.User
	}
	who, err := proc.Lookup(user)
	if err != nil {
		return nil, &proc.StartError{Reason: proc.BadUser, Detail: err.Error()}
	}
	return &who, nil
}
