package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	tail := " 10 20 30 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2"
	for raw, alive := range map[string]bool{
		"7 (sh) S" + tail: true, "7 (a) b) (c) R" + tail: true, "7 (sh) Z" + tail: false, "7 (sh) X" + tail: false,
		"7 (sh) Z 10 20 30 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 4242 1 2": true, "": false, "7 (sh": false, "7 (sh) S 1": false,
	} {
		m, ok := parseStat(7, []byte(raw))
		if ok != alive || (ok && (m.parent != 10 || m.group != 20 || m.session != 30 || m.start != 4242)) {
			t.Errorf("%q: %+v %v", raw, m, ok)
		}
	}
}

func TestParseLimits(t *testing.T) {
	raw, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := parseLimits(raw); ok { // "unlimited"
		t.Fatal("unlimited is a number")
	}
	for text, want := range map[string]uint64{"Max realtime timeout      4611686018427387905  unlimited            us": 4611686018427387905, "Max realtime timeout": 0, "": 0} {
		if got, _ := parseLimits([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestOOMCandidates(t *testing.T) {
	got := oomCandidates("9:name=systemd:/\n4:cpuset,memory:/a/b\n0::/x\n")
	for _, want := range []string{"/sys/fs/cgroup/memory/a/b/memory.oom_control", "/sys/fs/cgroup/x/memory.events", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in %v", want, got)
		}
	}
	file := filepath.Join(t.TempDir(), "events")
	for text, want := range map[string]int64{"low 0\noom 3\noom_kill 2\noom_group_kill 1\n": 2, "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n": 5} {
		os.WriteFile(file, []byte(text), 0o600)
		f, _ := os.Open(file)
		if n, ok := readOOMKills(f); !ok || n != want {
			t.Errorf("%q: %d %v", text, n, ok)
		}
		f.Close()
	}
}

func TestB012ShellArgv(t *testing.T) {
	if got := ShellArgv("/bin/sh", "x"); !slices.Equal(got, []string{"/bin/sh", "-c", "x"}) {
		t.Fatal(got)
	}
	long := strings.Repeat("ab", 700_000)
	got := ShellArgv("/bin/sh", long)
	if strings.Join(got[4:], "") != long || got[3] != "/bin/sh" || len(got) != 4+11 || !strings.HasSuffix(got[2], `${9}${10}${11}"`) {
		t.Fatalf("%q, %d arguments", got[2], len(got))
	}
}

func TestB084FindProgramAndShell(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(dir+"/run", []byte("#!/bin/sh\n"), 0o755)
	os.WriteFile(dir+"/data", nil, 0o644)
	for _, c := range []struct {
		name, path, cwd, want string
		reason                Reason
	}{
		{"run", "/nope:" + dir, "/", dir + "/run", ""}, {"run", "", dir, "./run", ""}, {"./run", "", dir, "./run", ""},
		{"data", dir, "/", "", Permission}, {"nope", dir, "/", "", NotFound}, {"", dir, "/", "", NotFound},
	} {
		got, err := FindProgram(c.name, c.path, c.cwd)
		if got != c.want || (err != nil) != (c.reason != "") || (err != nil && err.(*StartError).Reason != c.reason) {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
	if _, err := FindShell("nosuch", dir, "/"); err == nil || err.(*StartError).Reason != ShellNotFound {
		t.Fatal(err)
	}
	if got, err := FindShell("run", dir, "/"); err != nil || got != dir+"/run" {
		t.Fatal(got, err)
	}
}

func TestLookup(t *testing.T) {
	for user, uid := range map[string]uint32{"root": 0, "0": 0, "4242": 4242, "root:4243": 0, "4242:4243": 4242} {
		id, err := Lookup(user)
		if err != nil || id.UID != uid || (strings.Contains(user, ":") && id.GID != 4243) || id.Home == "" || !slices.Contains(id.Groups, id.GID) {
			t.Errorf("%s: %+v %v", user, id, err)
		}
	}
	for _, user := range []string{"nosuchuser", "-1", "4294967295", "root:nosuchgroup", ""} {
		if id, err := Lookup(user); err == nil {
			t.Errorf("%q: %+v", user, id)
		}
	}
}

func spawn(t *testing.T, argv ...string) (*Process, chan syscall.WaitStatus) {
	t.Helper()
	ended := make(chan syscall.WaitStatus, 1)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := Start(&Command{Path: argv[0], Argv: argv, Dir: "/", Env: []string{"PATH=" + DefaultPath},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, OnEnd: func(s syscall.WaitStatus, _ syscall.Rusage) { ended <- s }})
	if err != nil {
		t.Fatal(err)
	}
	return p, ended
}

func TestB032NoSignalAfterTheEnd(t *testing.T) {
	p, ended := spawn(t, "/bin/true")
	<-ended
	if p.Signal(syscall.SIGKILL) || p.SignalGroup(syscall.SIGKILL) || !p.Ended() {
		t.Fatal("an ended process was signalled")
	}
}

func TestB003TreeFollowsTheTag(t *testing.T) {
	if !Tagging() {
		t.Fatal("this machine cannot tag processes")
	}
	p, ended := spawn(t, "/bin/sh", "-c", "setsid env -i /bin/sh -c 'ulimit -S -t 100; sleep 650 & sleep 650' & exit 3")
	other, otherEnded := spawn(t, "/bin/sleep", "651")
	if status := <-ended; status.ExitStatus() != 3 {
		t.Fatal(status)
	}
	tree := &Tree{Tag: p.Tag, Leader: p.PID, Main: p}
	for end := time.Now().Add(5 * time.Second); tree.Signal(0) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d members", tree.Signal(0))
		}
	}
	if len(tree.Snapshot()) != 3 {
		t.Fatal(tree.Snapshot())
	}
	if left := tree.Kill(); left != 0 || tree.Alive() {
		t.Fatalf("%d left", left)
	}
	if !(&Tree{Tag: other.Tag, Leader: other.PID, Main: other}).Alive() {
		t.Fatal("another tree was hit")
	}
	other.Signal(syscall.SIGTERM)
	if status := <-otherEnded; status.Signal() != syscall.SIGTERM || other.Killed() {
		t.Fatal(status)
	}
}

func TestRetag(t *testing.T) {
	p, ended := spawn(t, "/bin/sleep", "652")
	tag := NewTag()
	if err := Retag(p.PID, tag); err != nil {
		t.Fatal(err)
	}
	if got, ok := tagOf(p.PID); !ok || got != tag {
		t.Fatal(got, ok)
	}
	if (&Tree{Tag: p.Tag}).Alive() || !(&Tree{Tag: tag}).Alive() {
		t.Fatal("the process is in its old tree")
	}
	p.Signal(syscall.SIGKILL)
	<-ended
	if !p.Killed() {
		t.Fatal("our own kill is not known")
	}
}

func TestB015DiagnoseNamesTheStep(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(dir+"/noformat", []byte("\x01\x02"), 0o755)
	os.WriteFile(dir+"/noloader", []byte("#!/no/such/loader\n"), 0o755)
	os.WriteFile(dir+"/plain", nil, 0o644)
	cases := []struct {
		command Command
		reason  Reason
	}{
		{Command{Path: "/bin/true", Dir: dir + "/no"}, BadCwd}, {Command{Path: "/bin/true", Dir: dir + "/plain"}, BadCwd},
		{Command{Path: "/no", Dir: dir}, NotFound}, {Command{Path: dir + "/noformat", Dir: dir}, ExecFormat},
		{Command{Path: dir + "/noloader", Dir: dir}, NotFound}, {Command{Path: dir + "/plain", Dir: dir}, Permission},
		{Command{Path: "./noformat", Dir: dir}, ExecFormat},
	}
	if os.Geteuid() == 0 {
		os.Mkdir(dir+"/closed", 0o700)
		nobody := &Identity{UID: 65534, GID: 65534}
		cases = append(cases, struct {
			command Command
			reason  Reason
		}{Command{Path: "/bin/true", Dir: dir + "/closed", User: nobody}, BadCwd})
	} else {
		cases = append(cases, struct {
			command Command
			reason  Reason
		}{Command{Path: "/bin/true", Dir: dir, User: &Identity{UID: 1, GID: 1}}, BadUser})
	}
	for _, c := range cases {
		c.command.Argv = []string{"x"}
		_, err := Start(&c.command)
		if err == nil || err.(*StartError).Reason != c.reason {
			t.Errorf("%+v: %v, not %s", c.command, err, c.reason)
		}
	}
}
