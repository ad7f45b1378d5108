package main

// The tests run the daemon as it is run: a process of its own (this test binary again, so that the race detector is
// in it), a unix socket, and nothing shared with the test but the protocol.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	token    = "a token of the tests"
	roleName = "SANDMAND_TEST_ROLE"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleName) {
	case "init": // the first process of a PID namespace needs a /proc of that namespace
		_ = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
		if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			fmt.Fprintln(os.Stderr, "mount /proc:", err)
			os.Exit(1)
		}
		fallthrough
	case "few": // descriptors; the standard library would raise the soft limit alone
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 300, Max: 300})
		fallthrough
	case "serve":
		os.Unsetenv(roleName)
		if err := run([]string{"serve"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == "noop" { // as a command in a daemon of the tests: the program that probes run
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type daemon struct {
	t      testing.TB
	socket string
	dir    string
	cmd    *exec.Cmd
	client *http.Client
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type settings map[string]any

func start(t testing.TB, over settings) *daemon { return startAs(t, "serve", over, nil) }

func startAs(t testing.TB, role string, over settings, attr *syscall.SysProcAttr) *daemon {
	t.Helper()
	return startWith(t, role, over, func(c *exec.Cmd) { c.SysProcAttr = attr })
}

// startWith lets adjust change how the process is started.
func startWith(t testing.TB, role string, over settings, adjust func(*exec.Cmd)) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandmand")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(token))
	config := settings{"listen": "unix:" + filepath.Join(dir, "s"), "token_sha256": hex.EncodeToString(sum[:]), "sandbox": "sb-test"}
	for key, value := range over {
		config[key] = value
	}
	raw, _ := json.Marshal(config)
	d := &daemon{t: t, dir: dir, socket: filepath.Join(dir, "s"), log: &lockedBuffer{}}
	d.cmd = exec.Command(os.Args[0])
	d.cmd.Env = append(os.Environ(), roleName+"="+role, "SANDMAND_CONFIG="+string(raw), "SECRET_OF_THE_DAEMON=canary")
	d.cmd.Stderr = d.log
	adjust(d.cmd)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		}, MaxIdleConnsPerHost: 64,
	}}
	t.Cleanup(d.stop)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		answer, err := d.client.Get("http://daemon/health")
		if err == nil {
			answer.Body.Close()
			return d
		}
		if time.Now().After(end) {
			t.Fatalf("the daemon did not come up: %v\n%s", err, d.log)
		}
	}
}

func (d *daemon) stop() {
	d.client.CloseIdleConnections()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			d.t.Errorf("the daemon ended with %v\n%s", err, d.log)
		}
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		d.t.Errorf("the daemon did not end by SIGTERM\n%s", d.log)
	}
	if text := d.log.String(); strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic") {
		d.t.Errorf("the daemon's log:\n%s", text)
	}
	os.RemoveAll(d.dir)
}

// call sends a request and returns the status and the body.
func (d *daemon) call(method, path string, body any) (int, []byte) {
	d.t.Helper()
	var reader io.Reader
	switch body := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(body)
	default:
		raw, err := json.Marshal(body)
		if err != nil {
			d.t.Fatal(err)
		}
		reader = bytes.NewReader(raw)
	}
	request, _ := http.NewRequest(method, "http://daemon"+path, reader)
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := d.client.Do(request)
	if err != nil {
		d.t.Fatalf("%s %s: %v\n%s", method, path, err, d.log)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer.StatusCode, raw
}

type result struct {
	ID        string  `json:"id"`
	State     string  `json:"state"`
	ExitCode  *int    `json:"exit_code"`
	Signal    *int    `json:"signal"`
	TimedOut  bool    `json:"timed_out"`
	OOM       bool    `json:"oom_killed"`
	Stdout    string  `json:"stdout"`
	Stderr    string  `json:"stderr"`
	OutBytes  int64   `json:"stdout_bytes"`
	ErrBytes  int64   `json:"stderr_bytes"`
	Truncated int64   `json:"stdout_truncated"`
	Head      int64   `json:"stdout_head_bytes"`
	PID       int     `json:"pid"`
	New       bool    `json:"session_new"`
	Ended     bool    `json:"session_ended"`
	Type      string  `json:"type"`
	Reason    string  `json:"reason"`
	Field     string  `json:"field"`
	Detail    string  `json:"detail"`
	Errno     string  `json:"errno"`
	Signalled int     `json:"signalled"`
	Status    int     `json:"-"`
	Took      float64 `json:"-"`
}

func (r result) code() int {
	if r.ExitCode == nil {
		return -1
	}
	return *r.ExitCode
}

type request map[string]any

func (d *daemon) exec(r request) result {
	d.t.Helper()
	begun := time.Now()
	status, raw := d.call("POST", "/v1/exec", r)
	out := decode(d.t, raw)
	out.Status, out.Took = status, time.Since(begun).Seconds()
	return out
}

func (d *daemon) sh(command string, more ...any) result {
	d.t.Helper()
	r := request{"command": command}
	for i := 0; i+1 < len(more); i += 2 {
		r[more[i].(string)] = more[i+1]
	}
	return d.exec(r)
}

func decode(t testing.TB, raw []byte) (r result) {
	t.Helper()
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatalf("%v in %.300q", err, raw)
	}
	return r
}

func expect(t testing.TB, r result, code int, stdout string) {
	t.Helper()
	if r.Status != 200 || r.code() != code || r.Stdout != stdout {
		t.Fatalf("got status %d, code %d, stdout %.200q, stderr %.200q (%s %s %s); want code %d, stdout %.200q",
			r.Status, r.code(), r.Stdout, r.Stderr, r.Type, r.Reason, r.Detail, code, stdout)
	}
}

func within(t testing.TB, r result, least, most float64) {
	t.Helper()
	if r.Took < least || r.Took > most*slow {
		t.Fatalf("took %.3f s, not %.2f to %.2f", r.Took, least, most)
	}
}

// slow stretches the bounds on time: the machine that runs the tests has other work.
const slow = 4

// count says how many processes have the text in their command line.
func count(t testing.TB, text string) int {
	t.Helper()
	n := 0
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range files {
		raw, _ := os.ReadFile(name)
		if bytes.Contains(bytes.ReplaceAll(raw, []byte{0}, []byte{' '}), []byte(text)) {
			n++
		}
	}
	return n
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * slow * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}
