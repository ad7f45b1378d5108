package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

var shells = []string{"bash", "dash"}

func TestB018ExitEndsTheSessionAndIsTold(t *testing.T) {
	d := start(t, nil)
	for _, shell := range shells {
		for command, code := range map[string]int{"exit 3": 3, "exec sh -c 'exit 6'": 6, "set -e; false; echo no": 1, "kill -9 $$": 137} {
			r := d.sh(command, "session", "s", "shell", shell)
			expect(t, r, code, "")
			if !r.Ended || !r.New {
				t.Fatalf("%s: %+v", command, r)
			}
			if r := d.sh("echo x", "session", "s"); r.Status != 409 || !strings.HasSuffix(r.Type, "session-terminated") {
				t.Fatalf("%+v", r)
			}
			r = d.sh("echo x", "session", "s", "shell", shell)
			expect(t, r, 0, "x\n")
			if !r.New || r.Ended {
				t.Fatalf("%+v", r)
			}
			expect(t, d.sh("echo one-shot"), 0, "one-shot\n")
			d.call("DELETE", "/v1/sessions/s", nil)
		}
	}
}

func TestB021StatePersistsAndStaysApart(t *testing.T) {
	d := start(t, nil)
	for _, shell := range shells {
		a, b := "a-"+shell, "b-"+shell
		expect(t, d.sh("cd /usr; export X=1; f(){ echo F; }; umask 077", "session", a, "shell", shell), 0, "")
		expect(t, d.sh("pwd; echo $X; f; umask", "session", a), 0, "/usr\n1\nF\n0077\n")
		expect(t, d.sh("pwd; echo \"$X\"; umask", "session", b, "shell", shell), 0, "/\n\n0022\n")
		expect(t, d.sh("pwd; echo \"$X\"", "shell", shell), 0, "/\n\n")
		expect(t, d.sh("pwd", "session", a, "cwd", "/etc"), 0, "/etc\n")
		if r := d.sh("touch "+d.dir+"/no", "session", a, "cwd", "/nope"); r.Reason != "cwd" {
			t.Fatalf("%+v", r)
		}
		expect(t, d.sh("pwd; printf %s \"$Y\"", "session", a, "env", map[string]string{"Y": "a'b\nc"}), 0, "/etc\na'b\nc")
	}
	begun := time.Now()
	var group sync.WaitGroup
	for _, name := range []string{"a-bash", "b-bash"} {
		group.Go(func() { d.sh("sleep 1", "session", name) })
	}
	group.Wait()
	if took := time.Since(begun); took > 1900*time.Millisecond {
		t.Fatalf("not parallel: %v", took)
	}
}

func TestB022CommandsOfOneSessionInOrder(t *testing.T) {
	d := start(t, nil)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			expect(t, d.sh(fmt.Sprintf("sleep 0.01; echo %d; (exit %d)", i, i), "session", "s"), i, fmt.Sprintln(i))
		})
	}
	group.Wait()
	expect(t, d.sh("echo healthy", "session", "s"), 0, "healthy\n")
}

func TestSessionStatusAndSyntax(t *testing.T) {
	d := start(t, nil)
	for _, shell := range shells {
		s := "s-" + shell
		expect(t, d.sh("(exit 7)", "session", s, "shell", shell), 7, "")
		expect(t, d.sh("echo $?", "session", s), 0, "7\n")
		for _, bad := range []string{"echo 'unfinished", "if", "((", "cat <<EOF\n$("} {
			if r := d.sh(bad, "session", s); r.Status != 200 || r.Ended {
				t.Fatalf("%s: %+v", bad, r)
			}
		}
		if r := d.sh("set -u; echo $NOPE; echo after", "session", s); r.code() == 0 || r.Stdout != "" || r.Ended {
			t.Fatalf("%+v", r)
		}
		expect(t, d.sh("set +u; cat; read x; echo $?", "session", s), 0, "1\n")
		expect(t, d.sh("wc -c", "session", s, "stdin", strings.Repeat("i", 300_000)), 0, "300000\n")
		expect(t, d.sh("echo unread", "session", s, "stdin", "zzz"), 0, "unread\n")
		expect(t, d.sh("echo o; echo e >&2; echo o", "session", s, "merge_stderr", true), 0, "o\ne\no\n")
		if r := d.sh("echo 99 0 >&9; echo 99 0 >&250; (exit 5)", "session", s); r.code() == 0 || r.Ended { // no way to forge an end
			t.Fatalf("%+v", r)
		}
		expect(t, d.sh("alias ll='printf LL' eval='echo mine'; echo() { :; }", "session", s), 0, "")
		expect(t, d.sh("ll; unalias eval; unset -f echo", "session", s), 0, "LL")
		expect(t, d.sh(": "+strings.Repeat("A", 1<<20), "session", s), 0, "")
		r := d.sh("sleep 617 & echo bg", "session", s)
		expect(t, r, 0, "bg\n")
		if r.Stderr != "" {
			t.Fatalf("%q", r.Stderr)
		}
		expect(t, d.sh("kill $!; echo gone", "session", s), 0, "gone\n") // dash 0.5.12 can sleep for ever in a wait after a kill
	}
}

func TestSessionTimeouts(t *testing.T) {
	d := start(t, nil)
	for _, shell := range shells {
		s := "s-" + shell
		expect(t, d.sh("X=kept", "session", s, "shell", shell), 0, "")
		for _, command := range []string{"sleep 618; echo after", "while :; do :; done", "sleep 618 & sleep 618; echo after", "(sleep 618; echo after) & wait", "{ sleep 618; echo after; } & { sleep 618; echo after; } | cat"} {
			r := d.sh(command, "session", s, "timeout_seconds", 0.3)
			if !r.TimedOut || r.Stdout != "" || r.Ended || count(t, "sleep 618") != 0 {
				t.Fatalf("%s: %+v, left %d", command, r, count(t, "sleep 618"))
			}
			within(t, r, 0.3, 0.6)
			expect(t, d.sh("echo $X", "session", s), 0, "kept\n")
		}
		for _, command := range []string{"trap '' INT TERM; sleep 618; echo after", "trap '' INT TERM; while :; do :; done", "sh -c 'trap : INT; sleep 618; sleep 618'; echo after"} {
			r := d.sh(command, "session", s, "timeout_seconds", 0.3, "grace_seconds", 0.3, "shell", shell)
			if !r.TimedOut || r.Stdout != "" || !r.Ended || count(t, "sleep 618") != 0 {
				t.Fatalf("%s: %+v, left %d", command, r, count(t, "sleep 618"))
			}
			d.call("DELETE", "/v1/sessions/"+s, nil)
		}
	}
}

func TestB031SessionDeleteLeavesBackgroundWork(t *testing.T) {
	d := start(t, nil)
	r := d.sh("sleep 619 & echo ok", "session", "s")
	expect(t, r, 0, "ok\n")
	d.call("POST", "/v1/exec", request{"command": "sleep 620", "session": "s", "background": true, "id": "run"})
	eventually(t, "it runs", func() bool { return count(t, "sleep 620") == 1 })
	if status, _ := d.call("DELETE", "/v1/sessions/s", nil); status != 204 {
		t.Fatal(status)
	}
	if end := decode(t, second(d.call("GET", "/v1/execs/run?wait=5", nil))); end.code() != 137 || count(t, "sleep 620") != 0 {
		t.Fatalf("%+v", end)
	}
	if count(t, "sleep 619") != 1 {
		t.Fatal("the background work is gone")
	}
	d.call("POST", "/v1/execs/"+r.ID+"/signal", request{"signal": "KILL"})
	eventually(t, "it is reached by its exec's id", func() bool { return count(t, "sleep 619") == 0 })
	if status, _ := d.call("DELETE", "/v1/sessions/s", nil); status != 404 {
		t.Fatal(status)
	}
}

func TestB022WaitingCommandIsCancelled(t *testing.T) {
	d := start(t, nil)
	d.call("POST", "/v1/exec", request{"command": "sleep 0.5", "session": "s", "background": true})
	d.call("POST", "/v1/exec", request{"command": "echo never >> " + d.dir + "/ran", "session": "s", "background": true, "id": "w"})
	d.call("POST", "/v1/execs/w/signal", request{"signal": "TERM"})
	if r := decode(t, second(d.call("GET", "/v1/execs/w?wait=5", nil))); !strings.HasSuffix(r.Type, "exec-cancelled") {
		t.Fatalf("%+v", r)
	}
	expect(t, d.sh("cat "+d.dir+"/ran 2>/dev/null; echo on", "session", "s"), 0, "on\n")
}

// Whatever a command defines, the ends of it and of the commands behind it are told, and those run.
func TestFunctionsOfAnyNameHideNoEnd(t *testing.T) {
	d := start(t, nil)
	for _, shell := range shells {
		for _, name := range []string{"builtin", "command", "printf", "echo", "unset", "source", "alias", "test", "cd", "set", "exit", "eval", "trap"} {
			s := shell + "-" + name
			define := name + "() { return 9; }; (/bin/sh -c 'exit 7')"
			r := d.sh(define, "session", s, "shell", shell, "timeout_seconds", 5)
			special := shell == "dash" && (name == "unset" || name == "set" || name == "exit" || name == "eval" || name == "trap")
			if r.TimedOut || r.Ended || (r.code() != 7 && !special) {
				t.Fatalf("%s: %+v", s, r)
			}
			within(t, r, 0, 0.3)
			code := 3
			if r := d.sh("/bin/echo on; /bin/sh -c 'exit 3'", "session", s, "timeout_seconds", 5); r.code() != code || r.Stdout != "on\n" || r.Ended {
				t.Fatalf("%s: %+v", s, r)
			}
			expect(t, d.sh("/bin/echo $?", "session", s, "timeout_seconds", 5), 0, "3\n")
		}
		r := d.sh("alias builtin=: command=: echo=: unset=: eval=:", "session", "a-"+shell, "shell", shell, "timeout_seconds", 5)
		expect(t, r, 0, "")
		expect(t, d.sh("/bin/echo on", "session", "a-"+shell, "timeout_seconds", 5), 0, "on\n")
	}
	based := start(t, settings{"env": map[string]string{"BASH_FUNC_builtin%%": "() { return 9; }"}})
	expect(t, based.sh("/bin/echo on", "session", "env", "shell", "bash", "timeout_seconds", 5), 0, "on\n")
	r := d.sh("shopt -s extdebug; trap false DEBUG", "session", "eaten", "shell", "bash", "timeout_seconds", 10)
	if r.TimedOut || !r.Ended {
		t.Fatalf("%+v", r)
	}
}
