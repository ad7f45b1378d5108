// Package session keeps shells alive between commands, so that directory, variables, functions and jobs stay.
//
// A shell reads lines from a pipe that no command can see. For each command it evals the text with its streams
// redirected to FIFOs of this command alone, and then writes the exit status to a pipe that commands do not have
// (closed for them by the same redirection). So the end is never read out of the output, and the output of a job
// that an earlier command left behind never mixes into a later one's. Nothing is put into the shell: no function,
// no variable, no trap.
package session

import (
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/proc"
)

// dialect is how one kind of shell is driven.
type dialect struct {
	arguments []string
	// builtin reaches the shell's own eval and echo past aliases and functions of those names, and without the
	// rule that a syntax error in eval ends a POSIX shell.
	builtin string
	// sources: the text is read from a file by the builtin "." rather than given to eval. While bash does that it
	// does not think itself interactive, and so does not announce jobs and exits on the command's error stream.
	sources bool
	status  int    // the descriptor of the status pipe; dash can name a single digit only
	prepare string // the first line
	// regain takes a function away that lies over builtin's word: nothing would run any more. It is made of words
	// that functions cannot take: POSIX's special built-ins. Bash lets them come first in its POSIX mode alone.
	regain string
}

var (
	bash = dialect{
		arguments: []string{"--norc", "--noprofile", "--noediting", "+H", "-i", "-s"},
		builtin:   `\builtin `, sources: true, status: 250,
		prepare: `\builtin set +o history` + "\n", // our lines are nobody's history
		regain: "POSIXLY_CORRECT=${POSIXLY_CORRECT-sandman} \\unset -f builtin\n" +
			`\builtin [ "$POSIXLY_CORRECT" != sandman ] || \builtin unset -v POSIXLY_CORRECT` + "\n",
	}
	posix = dialect{arguments: []string{"-i", "-s"}, builtin: `\command `, status: 9, regain: "\\unset -f command\n"}
)

// Shells run "interactive", without a terminal: that is what makes SIGINT abandon a command and keep the shell.

func dialectOf(shell string) dialect {
	if strings.HasPrefix(path.Base(shell), "bash") {
		return bash
	}
	return posix
}

// shell is one live process.
type shell struct {
	dialect  dialect
	process  *proc.Process
	tag      uint64 // worn between commands
	retags   bool   // commands get tags of their own
	control  *os.File
	status   chan report
	stray    *os.File // the shell's own standard output: what traps print outside of any command
	exited   chan syscall.WaitStatus
	folder   string
	counter  int
	last     int         // exit status of the last command
	written  atomic.Bool // the lines of the command are in the pipe
	shadowed bool        // a function lies over what reaches the builtins
}

type report struct{ counter, status int }

// startShell starts a shell as its first command asks.
func startShell(e *execs.Exec) (*shell, error) {
	r, spec := e.Registry(), e.Request()
	who, err := r.Identify(spec.User)
	if err != nil {
		return nil, err
	}
	var switched *proc.Identity
	if !who.IsOwn() {
		switched = who
	}
	dir := r.Dir(spec.Cwd)
	env, pathList := r.Environ().For(spec, who)
	asked := spec.Shell
	if asked == "" {
		asked = r.Config().Shell
	}
	program, err := proc.FindShell(asked, pathList, dir)
	if err != nil {
		return nil, err
	}
	folder, err := makeFolder(r.Config().SpoolDir, switched)
	if err != nil {
		return nil, err
	}
	s := &shell{dialect: dialectOf(program), folder: folder, status: make(chan report, 4), exited: make(chan syscall.WaitStatus, 1)}
	if err := s.launch(program, env, dir, switched); err != nil {
		os.Remove(folder)
		return nil, err
	}
	return s, nil
}

func (s *shell) launch(program string, env []string, dir string, who *proc.Identity) error {
	var opened []*os.File
	pipe := func() (read, write *os.File, err error) {
		if read, write, err = os.Pipe(); err == nil {
			opened = append(opened, read, write)
		}
		return read, write, err
	}
	fail := func(err error) error {
		for _, file := range opened {
			file.Close()
		}
		return err
	}
	controlIn, controlOut, err := pipe()
	if err != nil {
		return fail(&proc.StartError{Reason: proc.Resource, Detail: err.Error()})
	}
	statusIn, statusOut, err := pipe()
	if err != nil {
		return fail(&proc.StartError{Reason: proc.Resource, Detail: err.Error()})
	}
	strayIn, strayOut, err := pipe()
	if err != nil {
		return fail(&proc.StartError{Reason: proc.Resource, Detail: err.Error()})
	}
	sink, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		sinkIn, sinkOut, pipeErr := pipe()
		if pipeErr != nil {
			return fail(&proc.StartError{Reason: proc.Resource, Detail: pipeErr.Error()})
		}
		go swallow(sinkIn)
		sink = sinkOut
	}
	descriptors := make([]uintptr, s.dialect.status+1)
	for i := range descriptors {
		descriptors[i] = ^uintptr(0)
	}
	descriptors[0], descriptors[1], descriptors[2] = controlIn.Fd(), strayOut.Fd(), sink.Fd()
	descriptors[s.dialect.status] = statusOut.Fd()
	for _, fd := range []uintptr{controlIn.Fd(), statusOut.Fd(), strayOut.Fd()} {
		_ = syscall.SetNonblock(int(fd), false) // a shell expects its descriptors to block
	}
	s.process, err = proc.Start(&proc.Command{
		Path: program, Argv: append([]string{program}, s.dialect.arguments...), Env: env, Dir: dir, User: who,
		Files: descriptors,
		OnEnd: func(status syscall.WaitStatus, _ syscall.Rusage) { s.exited <- status },
	})
	if err != nil {
		return fail(err)
	}
	for _, file := range []*os.File{controlIn, statusOut, strayOut, sink} {
		file.Close()
	}
	s.tag, s.control, s.stray = s.process.Tag, controlOut, strayIn
	s.retags = proc.Retag(s.process.PID, s.tag) == nil
	go s.listen(statusIn)
	lines := s.dialect.prepare
	for _, entry := range env { // bash takes functions out of its environment
		if s.dialect.sources && strings.HasPrefix(entry, "BASH_FUNC_") {
			lines = s.dialect.regain + lines
			break
		}
	}
	_, err = s.control.WriteString(lines)
	return err
}

func swallow(file *os.File) {
	buffer := make([]byte, 4096)
	for {
		if _, err := file.Read(buffer); err != nil {
			file.Close()
			return
		}
	}
}

// listen reads reports: "counter status" lines.
func (s *shell) listen(file *os.File) {
	defer file.Close()
	buffer := make([]byte, 0, 256)
	for {
		n, err := file.Read(buffer[len(buffer):cap(buffer)])
		if err != nil {
			return
		}
		buffer = buffer[:len(buffer)+n]
		for {
			line, rest, found := strings.Cut(string(buffer), "\n")
			if !found {
				break
			}
			buffer = append(buffer[:0], rest...)
			first, second, _ := strings.Cut(line, " ")
			counter, err1 := strconv.Atoi(first)
			status, err2 := strconv.Atoi(second)
			if err1 == nil && err2 == nil {
				select {
				case s.status <- report{counter, status}:
				default: // a repeated report that nobody waits for
				}
			}
		}
		if len(buffer) == cap(buffer) { // no line of ours: somebody found the descriptor
			buffer = buffer[:0]
		}
	}
}

// lines are what makes the shell run one command and report.
func (s *shell) lines(f *streams) string {
	var b strings.Builder
	if s.shadowed {
		b.WriteString(s.dialect.regain)
		s.shadowed = false
	}
	if s.last != 0 {
		b.WriteString("(" + s.dialect.builtin + "exit " + strconv.Itoa(s.last) + ") || ") // $? is what the last command left, not our report
	}
	b.WriteString(f.run + " <" + quote(f.in) + " >" + quote(f.out))
	if f.errors == "" {
		b.WriteString(" 2>&1")
	} else {
		b.WriteString(" 2>" + quote(f.errors))
	}
	b.WriteString(" " + strconv.Itoa(s.dialect.status) + ">&-\n")
	b.WriteString(s.reportLines())
	return b.String()
}

// reportLines report twice: by the builtin echo, and, if a function took its place or the pipe was closed, in the name
// of a file. A redirection alone is no command, so that nothing can take its place; $_ is the last word of the line before.
func (s *shell) reportLines() string {
	counter := strconv.Itoa(s.counter)
	return s.dialect.builtin + "echo " + counter + " $? >&" + strconv.Itoa(s.dialect.status) + "\n" +
		`>` + quote(s.folder+"/"+counter+".") + `"$_"` + "\n"
}

// look finds a report that came as a file alone. The line before it had its chance: what is in the pipe goes first.
func (s *shell) look() (r report, found bool) {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return report{}, false
	}
	prefix := strconv.Itoa(s.counter) + "."
	for _, entry := range entries {
		if text, ours := strings.CutPrefix(entry.Name(), prefix); ours {
			status, err := strconv.Atoi(text)
			if err != nil || status < 0 || status > 255 {
				continue
			}
			return report{s.counter, status}, true
		}
	}
	return report{}, false
}

// forget removes the files of reports.
func (s *shell) forget() {
	entries, _ := os.ReadDir(s.folder)
	for _, entry := range entries {
		if first := entry.Name()[0]; first >= '0' && first <= '9' {
			_ = os.Remove(s.folder + "/" + entry.Name())
		}
	}
}

// idle says that the shell has read all its lines and waits for more: if it has reported nothing, it never will. While a
// command runs, descriptor 0 is another. Where the kernel tells none of this, nothing is known.
func (s *shell) idle() bool {
	if !s.written.Load() {
		return false
	}
	raw, err := s.control.SyscallConn()
	if err != nil {
		return false
	}
	left, link := int32(-1), ""
	_ = raw.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&left)))
		link, _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(fd)))
	})
	at := "/proc/" + strconv.Itoa(s.process.PID)
	input, _ := os.Readlink(at + "/fd/0")
	call, _ := os.ReadFile(at + "/syscall")
	return left == 0 && link != "" && input == link && strings.HasPrefix(string(call), strconv.Itoa(syscall.SYS_READ)+" 0x0 ")
}

// settings are a later command's cwd and env, which stay, as if typed.
func settings(spec *execs.Spec) string {
	var b strings.Builder
	if spec.Cwd != "" {
		b.WriteString("cd -- " + quote(spec.Cwd) + " && ")
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Env)) {
		b.WriteString("export " + key + "=" + quote(spec.Env[key]) + " && ")
	}
	if b.Len() == 0 {
		return ""
	}
	return b.String() + ":; "
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// close ends a shell that is idle: by the end of its input, so that its exit trap runs, and else by force.
func (s *shell) close() {
	s.control.Close()
	select {
	case <-s.exited:
	case <-time.After(closeGrace):
		s.process.Signal(syscall.SIGKILL)
		<-s.exited
	}
	s.cleanup()
}

// closeGrace is for an exit trap.
const closeGrace = 500 * time.Millisecond

func (s *shell) cleanup() {
	s.control.Close()
	s.stray.Close()
	os.RemoveAll(s.folder)
}
