package files

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func asUser1000(o *Options) { o.User = "1000:1000" }

func owners(t *testing.T, paths ...string) string {
	t.Helper()
	var got []string
	for _, path := range paths {
		st, err := statat(atFDCWD, path, atSymlinkNofollow)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d:%d", st.Uid, st.Gid))
	}
	return strings.Join(got, " ")
}

func TestB067FilesAndParentsBelongToTheUser(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	s.put("a/b/c.txt", "x\n")
	if got := owners(t, s.at("a"), s.at("a", "b"), s.at("a", "b", "c.txt")); got != "1000:1000 1000:1000 1000:1000" {
		t.Error(got)
	}
	s.want(200, "PUT", "/v1/files", q("path", "a/b/c.txt", "append", "true"), "y\n")
	s.want(201, "POST", "/v1/files/mkdir", nil, `{"path":"m/n"}`)
	s.want(201, "POST", "/v1/files/link", nil, `{"path":"l/m","target":"x"}`)
	if got := owners(t, s.at("m"), s.at("m", "n"), s.at("l"), s.at("l", "m")); got != "1000:1000 1000:1000 1000:1000 1000:1000" {
		t.Error(got)
	}
	s.want(200, "DELETE", "/v1/files", q("path", "a", "recursive", "true"), "")

	s.want(201, "PUT", "/v1/files", q("path", "o/p/q", "user", "0:0", "owner", "1001:1002"), "x")
	if got := owners(t, s.at("o"), s.at("o", "p"), s.at("o", "p", "q")); got != "1001:1002 1001:1002 1001:1002" {
		t.Error(got)
	}
	// A file that is replaced keeps its owner and mode.
	s.want(200, "PUT", "/v1/files", q("path", "o/p/q", "user", "0:0"), "y")
	if got := owners(t, s.at("o", "p", "q")); got != "1001:1002" {
		t.Error(got)
	}
	s.refused(403, "permission-denied", "PUT", "/v1/files", q("path", "mine", "owner", "0:0"), "x")
	s.refused(422, "invalid", "PUT", "/v1/files", q("path", "mine", "owner", "no-such"), "x")
	s.refused(422, "invalid", "PUT", "/v1/files", q("path", "mine", "user", "4294967295"), "x")
}

func TestB069RightsAreTheUsers(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	for name, mode := range map[string]os.FileMode{"closed": 0o600, "readable": 0o644, "writable": 0o666} {
		s.write(name, "root's", mode)
	}
	if err := os.Mkdir(s.at("shut"), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.dir, 0o777|os.ModeSticky); err != nil { // sticky: a root-owned file in it is not the user's to delete
		t.Fatal(err)
	}
	denied := func(method, path string) {
		t.Helper()
		got := s.refused(403, "permission-denied", method, "/v1/files", q("path", path), "x")
		if got["errno"] != "EACCES" && got["errno"] != "EPERM" {
			t.Errorf("%s %s: errno %v", method, path, got["errno"])
		}
		if got["path"] == "" {
			t.Errorf("%s %s: no path", method, path)
		}
	}
	denied("PUT", "/etc/sandman-test")
	denied("PUT", "closed")
	denied("PUT", "readable")
	denied("PUT", "shut/x")
	denied("GET", "/etc/shadow")
	denied("GET", "closed")
	denied("GET", "/proc/1/environ")
	denied("GET", fmt.Sprintf("/proc/%d/environ", os.Getpid()))
	denied("DELETE", "readable")
	denied("DELETE", "/etc/hostname")
	for _, path := range []string{"/proc/x", "/sys/x"} {
		if got := s.call("PUT", "/v1/files", q("path", path), "x"); got.status != 403 && got.status != 404 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	s.refused(403, "permission-denied", "GET", "/v1/files/list", q("path", "/root"), "")
	s.refused(403, "permission-denied", "GET", "/v1/archive", q("path", "/root"), "")
	s.refused(403, "permission-denied", "POST", "/v1/files/mkdir", nil, `{"path":"/etc/x/y"}`)
	s.refused(403, "permission-denied", "POST", "/v1/files/move", nil, `{"from":"readable","to":"mine"}`)
	s.refused(403, "permission-denied", "POST", "/v1/files/link", nil, `{"path":"/etc/x","target":"y"}`)
	for _, name := range []string{"closed", "readable"} {
		if content, _ := os.ReadFile(s.at(name)); string(content) != "root's" {
			t.Errorf("%s was written", name)
		}
	}
	// Another request may work as another user, and the thread that did is itself again.
	if got := s.want(200, "GET", "/v1/files", q("path", "closed", "user", "0"), ""); string(got.body) != "root's" {
		t.Errorf("%q", got.body)
	}
}

func TestB069AWritableFileInAClosedFolderIsWrittenInPlace(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	if err := os.Mkdir(s.at("shut"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("shut/open", "root's, and much longer", 0o666)
	s.want(200, "PUT", "/v1/files", q("path", "shut/open"), "mine")
	if content, _ := os.ReadFile(s.at("shut", "open")); string(content) != "mine" {
		t.Errorf("%q", content)
	}
	if got := owners(t, s.at("shut", "open")); got != "0:0" {
		t.Error(got)
	}
	s.onlyNames(s.at("shut"), "open")
}

func TestAWriterOfASetuidFileDoesNotKeepItsRights(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	s.write("tool", "#!", 0o600)
	if err := syscall.Chmod(s.at("tool"), 0o4777); err != nil {
		t.Fatal(err)
	}
	s.put("tool", "evil")
	st, err := statat(atFDCWD, s.at("tool"), 0)
	if err != nil || st.Mode&syscall.S_ISUID != 0 {
		t.Errorf("%o %d %v", st.Mode, st.Uid, err)
	}
	s.write("log", "#!", 0o600)
	if err := syscall.Chmod(s.at("log"), 0o4777); err != nil {
		t.Fatal(err)
	}
	s.want(200, "PUT", "/v1/files", q("path", "log", "append", "true"), "evil")
	if st, err = statat(atFDCWD, s.at("log"), 0); err != nil || st.Mode&syscall.S_ISUID != 0 {
		t.Errorf("appended: %o %d %v", st.Mode, st.Uid, err)
	}
}

func TestReadOnlyMountSaysSo(t *testing.T) {
	asRoot(t)
	s := start(t)
	if err := os.Mkdir(s.at("ro"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", s.at("ro"), "tmpfs", syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(s.at("ro"), 0)
	for _, call := range []struct{ method, path, text string }{
		{"PUT", "/v1/files?path=ro/x", "x"}, {"PUT", "/v1/files?path=ro/x/y", "x"}, {"PUT", "/v1/files?append=1&path=ro/x", "x"},
		{"POST", "/v1/files/mkdir?", `{"path":"ro/x"}`}, {"POST", "/v1/files/link?", `{"path":"ro/x","target":"y"}`},
	} {
		where, raw, _ := strings.Cut(call.path, "?")
		request, _ := http.NewRequest(call.method, s.url+where+"?"+raw, strings.NewReader(call.text))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 403 {
			t.Errorf("%s %s: %d", call.method, call.path, response.StatusCode)
		}
	}
	s.refused(403, "read-only", "PUT", "/v1/files", q("path", "ro/x"), "x")
}

func TestADiskThatIsFullSaysSoAndKeepsTheOld(t *testing.T) {
	asRoot(t)
	s := start(t)
	if err := os.Mkdir(s.at("small"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", s.at("small"), "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(s.at("small"), 0)
	s.put("small/f", "v1")
	big := string(random(7, 2<<20))
	for _, query := range [][]string{{"path", "small/f"}, {"path", "small/f", "append", "true"}, {"path", "small/new"}} {
		if got := s.refused(507, "no-space", "PUT", "/v1/files", q(query...), big); got["cause"] != "task" || got["errno"] != "ENOSPC" {
			t.Errorf("%v", got)
		}
	}
	if s.get("small/f") != "v1" {
		t.Error("changed")
	}
	s.onlyNames(s.at("small"), "f")
	// An append that was received whole, but does not fit where it belongs, takes itself back.
	half := string(random(8, 600<<10))
	s.put("small/g", half)
	s.refused(507, "no-space", "PUT", "/v1/files", q("path", "small/g", "append", "true"), half)
	if s.get("small/g") != half {
		t.Error("an append was left half done")
	}
}

func TestThreadsAreThemselvesAgain(t *testing.T) {
	asRoot(t)
	s := start(t)
	s.write("closed", "root's", 0o600)
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for i := range 50 {
				user, want := "0", 200
				if (caller+i)%2 == 0 {
					user, want = fmt.Sprint(1000+caller), 403
				}
				got, err := s.try("GET", "/v1/files", q("path", "closed", "user", user), nil)
				if err != nil || got.status != want {
					t.Errorf("user %s: %d, want %d: %v", user, got.status, want, err)
				}
			}
		})
	}
	callers.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err == nil && !strings.Contains(string(status), "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n") {
			t.Errorf("thread %s stayed another user:\n%s", task.Name(), status)
		}
	}
}

func TestTheMainThreadKeepsItsDeathSignal(t *testing.T) {
	asRoot(t)
	user := &rights{Identity{UID: 1000, GID: 1000}}
	for range 200 {
		err := user.do(func() error {
			if syscall.Gettid() == syscall.Getpid() {
				t.Error("worked on the main thread")
			}
			if syscall.Geteuid() != 1000 {
				t.Error("not the user")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPanicStaysThePanicOfItsCaller(t *testing.T) {
	asRoot(t)
	defer func() {
		if recover() != "cause" {
			t.Error("the panic was lost")
		}
	}()
	_ = (&rights{Identity{UID: 1000, GID: 1000}}).do(func() error { panic("cause") })
}

func TestARunningProgramCanBeReplaced(t *testing.T) {
	asRoot(t)
	s := start(t, asUser1000)
	content, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	s.want(201, "PUT", "/v1/files", q("path", "program", "mode", "755"), string(content))
	running := exec.Command(s.at("program"), "60")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = running.Process.Kill(); _ = running.Wait() }()
	s.refused(409, "busy", "PUT", "/v1/files", q("path", "program", "append", "true"), "x")
	s.want(200, "PUT", "/v1/files", q("path", "program"), "new")
}
