package main

// What a command or a caller might do to a daemon that would rather be left alone.

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func TestATracedCommandHasNotEnded(t *testing.T) {
	d := start(t, nil)
	// PTRACE_TRACEME makes the daemon the tracer: its wait is then told of every stop, which is no end.
	script := d.dir + "/traced.py"
	text := "import ctypes, os\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.execv('/bin/sleep', ['sleep', '642'])\n"
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := d.exec(request{"argv": []string{"python3", script}, "timeout_seconds": 1.5, "grace_seconds": 0.2})
	if r.Reason == "not_found" {
		t.Skip("no python3")
	}
	if !r.TimedOut || r.code() != 137 {
		t.Fatalf("%+v", r)
	}
	if n := count(t, "sleep 642"); n != 0 {
		t.Fatalf("%d left", n)
	}
	expect(t, d.sh("echo well"), 0, "well\n")
}

func TestSignalsFromInsideDoNotEndTheInit(t *testing.T) {
	d := startInit(t)
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case syscall.SIGINT, syscall.SIGTERM: // ask it to end, from wherever
		case 32, 33: // the C library's own: a shell will not send them
		default:
			expect(t, d.sh(fmt.Sprintf("kill -%d 1; echo sent", sig)), 0, "sent\n")
		}
	}
	_ = d.sh("kill -KILL -1")
	time.Sleep(50 * time.Millisecond)
	expect(t, d.sh("grep Sig[BI] /proc/self/status | grep -v '0000000000000000$'"), 1, "") // and a command inherits none of it
}

func TestALogThatNobodyReadsDoesNotEndTheDaemon(t *testing.T) {
	reading, writing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d := startWith(t, "serve", nil, func(c *exec.Cmd) { c.Stderr = writing })
	writing.Close()
	reading.Close()
	expect(t, d.sh("setsid sleep 641 >/dev/null 2>&1 & echo ok"), 0, "ok\n")
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // which it logs
	eventually(t, "all is taken down", func() bool { return count(t, "sleep 641") == 0 && dead(d) })
}

func TestAFileSizeLimitDegradesTheSpoolOnly(t *testing.T) {
	dir := t.TempDir()
	d := start(t, settings{"spool_dir": dir})
	limit := syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	setLimit(t, d.cmd.Process.Pid, syscall.RLIMIT_FSIZE, &limit)
	r := d.sh("head -c 8000000 /dev/zero | tr '\\0' x", "max_output_bytes", 1000)
	if r.code() != 0 || r.OutBytes != 8_000_000 || len(r.Stdout) != 1000 {
		t.Fatalf("%d, %d bytes, %d shown", r.code(), r.OutBytes, len(r.Stdout))
	}
}

func setLimit(t testing.TB, pid, resource int, limit *syscall.Rlimit) {
	t.Helper()
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource), uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
}

func TestTheSameRequestGetsTheSameEnvironment(t *testing.T) {
	base, own := map[string]string{}, map[string]string{}
	for i := range 20 {
		base[fmt.Sprint("B", i)], own[fmt.Sprint("O", i)] = "x", "y"
	}
	first := start(t, settings{"env": base}).exec(request{"argv": []string{"env"}, "env": own})
	for range 3 {
		d := start(t, settings{"env": base})
		for range 5 {
			expect(t, d.exec(request{"argv": []string{"env"}, "env": own}), 0, first.Stdout)
		}
	}
}

func TestRecordsKeepLittleOfTheirRequests(t *testing.T) {
	d := start(t, nil)
	long := strings.Repeat("x", 1_000_000)
	for range 3 {
		d.sh("true")
	}
	before := status(t, d, "VmRSS")
	for range 40 {
		expect(t, d.sh("echo ok; : "+long), 0, "ok\n")
		expect(t, d.sh("head -c 2; exec <&-", "stdin", long), 0, "xx")
		expect(t, d.sh("echo ok", "session", "s", "stdin", long, "env", map[string]string{"K": long[:100_000]}), 0, "ok\n")
		expect(t, d.sh("echo ${#K}", "env", map[string]string{"K": long[:100_000]}), 0, "100000\n")
		if r := d.exec(request{"argv": []string{"/" + long[:100_000]}}); r.Reason != "other" || len(r.Detail) > 5000 {
			t.Fatalf("%s %d", r.Reason, len(r.Detail))
		}
		if r := d.exec(request{"argv": append([]string{"true"}, strings.Fields(strings.Repeat("a ", 10_000))...)}); r.code() != 0 {
			t.Fatalf("%+v", r)
		}
	}
	if grew := status(t, d, "VmRSS") - before; grew > 60<<10*raceFactor { // with whole requests: over 130 MiB
		t.Fatalf("grew by %d KiB", grew)
	}
	_, raw := d.call("GET", "/v1/execs?limit=1000", nil)
	if n := strings.Count(string(raw), `"command":"echo ok; : x`); n != 40 || len(raw) > 1_000_000 {
		t.Fatalf("%d in %d bytes", n, len(raw))
	}
}

func TestLateOutputOfDroppedRecordsIsNotCountedForEver(t *testing.T) {
	d := start(t, settings{"max_execs": 2, "memory_bytes": 1 << 20})
	for i := range 12 { // what each writes when its record is gone: more than the whole bound together
		expect(t, d.sh(fmt.Sprintf("(sleep 0.3; head -c 200000 /dev/zero; : > %s/late%d) & echo ok", d.dir, i)), 0, "ok\n")
	}
	for range 3 {
		d.sh("true")
	}
	eventually(t, "all have written", func() bool {
		names, _ := filepath.Glob(d.dir + "/late*")
		return len(names) == 12
	})
	time.Sleep(100 * time.Millisecond)
	r := d.sh("head -c 100000 /dev/zero | tr '\\0' x", "id", "kept")
	expect(t, r, 0, strings.Repeat("x", 100_000))
	d.sh("true")
	time.Sleep(100 * time.Millisecond)
	if r := decode(t, second(d.call("GET", "/v1/execs/kept", nil))); len(r.Stdout) != 100_000 {
		t.Fatalf("of 100,000 bytes %d are kept", len(r.Stdout))
	}
}

func TestAFloodOfSignalsIsTakenInTurn(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "argv": []string{"sleep", "643"}})
	p.until("started")
	before := status(t, d, "VmRSS")
	go func() {
		for range 30_000 {
			p.send(request{"op": "signal", "ch": 1, "signal": "CONT"})
		}
		p.send(request{"op": "signal", "ch": 1, "signal": "KILL"})
	}()
	most := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		most = max(most, status(t, d, "VmRSS"))
	}
	within(t, d.sh("echo well"), 0, 1)
	if m := p.until("exit"); m.code() != 137 {
		t.Fatalf("%+v", m)
	}
	if most-before > 8<<10*raceFactor {
		t.Fatalf("grew by %d KiB", most-before)
	}
}

// Every answer is whole or says what is missing, while all of them together are more than memory may hold.
func TestFloodsTogetherAreWholeOrSayWhatIsMissing(t *testing.T) {
	d := start(t, settings{"memory_bytes": 2 << 20})
	var wait sync.WaitGroup
	for i := range 48 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			size := 30_000 + i*4_700 // at most what one stream keeps: cut in two, an answer's second part has nothing to degrade to
			answer, raw := d.call("POST", "/v1/exec", request{"command": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' y; exit 3", size)})
			if answer != 200 {
				t.Errorf("status %d: %.200s", answer, raw)
				return
			}
			r := decode(t, raw)
			if r.code() != 3 || r.OutBytes != int64(size) || int64(len(r.Stdout))+r.Truncated != int64(size) {
				t.Errorf("code %d, %d bytes of %d, %d here, %d missing", r.code(), r.OutBytes, size, len(r.Stdout), r.Truncated)
			}
		}()
	}
	wait.Wait()
	expect(t, d.sh("echo well"), 0, "well\n")
}

func TestAHalfClosedCallerIsNotToldOfAnEnd(t *testing.T) {
	d := start(t, nil)
	d.call("POST", "/v1/exec", request{"command": "echo first; sleep 0.6; echo last", "background": true, "id": "long"})
	body := `{"command":"sleep 0.6"}`
	for _, line := range []string{
		fmt.Sprintf("POST /v1/exec HTTP/1.1\r\nContent-Length: %d\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n%s", len(body), token, body),
		"GET /v1/execs/long?wait=5 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n",
		"GET /v1/execs/long/output?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n",
	} {
		nc, err := net.Dial("unix", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(nc, line)
		_ = nc.(*net.UnixConn).CloseWrite()
		raw, _ := io.ReadAll(nc)
		nc.Close()
		if bytes.HasSuffix(raw, []byte("0\r\n\r\n")) || bytes.Contains(raw, []byte("Content-Length: 0")) {
			t.Fatalf("%.20q: %q", line, raw)
		}
	}
}

func TestIdleConnectionsLeaveDescriptorsForTheRest(t *testing.T) {
	d := startWith(t, "few", nil, func(*exec.Cmd) {})
	p := d.connect()
	var idle []net.Conn
	for range 400 { // of 300 descriptors
		nc, err := net.Dial("unix", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		idle = append(idle, nc)
	}
	_ = idle[399].SetReadDeadline(time.Now().Add(5 * time.Second))
	if raw, _ := io.ReadAll(idle[399]); !bytes.HasPrefix(raw, []byte("HTTP/1.1 503")) {
		t.Fatalf("%q", raw)
	}
	for i := range 20 {
		p.send(request{"op": "start", "ch": i, "command": "cat; sleep 0.2; echo well", "stdin_base64": "eA=="})
	}
	for range 20 {
		if m := p.until("exit"); m.code() != 0 || m.OutBytes != 6 {
			t.Fatalf("%+v", m)
		}
	}
}

func TestHalfSentRequestsAreBoundedTogether(t *testing.T) {
	d := start(t, nil)
	d.sh("true")
	before := status(t, d, "VmRSS")
	half := strings.Repeat("x", 15<<20)
	refused := 0
	var held []net.Conn
	for range 12 {
		nc, err := net.Dial("unix", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		held = append(held, nc)
		fmt.Fprintf(nc, "POST /v1/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n{\"command\":\"", token, 16<<20)
		_ = nc.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(nc, half) // a refused one is cut
	}
	for _, nc := range held {
		_ = nc.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		answer := make([]byte, 12)
		if n, _ := io.ReadFull(nc, answer); n > 0 {
			if string(answer) != "HTTP/1.1 503" {
				t.Fatalf("%q", answer)
			}
			refused++
		}
	}
	if refused < 6 || refused == 12 {
		t.Fatalf("%d of 12 are refused", refused)
	}
	if grew := status(t, d, "VmRSS") - before; grew > 120<<10 { // all of them: over 180 MiB
		t.Fatalf("grew by %d KiB", grew)
	}
	expect(t, d.sh("echo small; : "+strings.Repeat("y", 40_000)), 0, "small\n")
	if r := d.exec(request{"command": "true", "stdin": half}); r.Status != 503 || !strings.HasSuffix(r.Type, "resource-exhausted") {
		t.Fatalf("%+v", r)
	}
	for _, nc := range held {
		nc.Close()
	}
	eventually(t, "there is room again", func() bool { return d.exec(request{"command": "true", "stdin": half}).Status == 200 })
}
