package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

func TestB008StdinIsAtItsEnd(t *testing.T) {
	d := start(t, nil)
	for command, code := range map[string]int{"cat": 0, "read x; exit $?": 1, "grep foo": 1} {
		r := d.sh(command)
		expect(t, r, code, "")
		within(t, r, 0, 1)
	}
	expect(t, d.sh("cat; echo end", "stdin", "given\n"), 0, "given\nend\n")
	expect(t, d.sh("wc -c", "stdin_base64", base64.StdEncoding.EncodeToString(make([]byte, 700_001))), 0, "700001\n")
	expect(t, d.sh("echo unread", "stdin", strings.Repeat("x", 300_000)), 0, "unread\n")
}

func TestB010NoControllingTerminal(t *testing.T) {
	r := start(t, nil).sh("exec 3</dev/tty || echo refused; ps -o tty= -p $$")
	if r.code() != 0 || !strings.HasPrefix(r.Stdout, "refused\n") || strings.TrimSpace(strings.TrimPrefix(r.Stdout, "refused\n")) != "?" {
		t.Fatalf("%+v", r)
	}
}

func TestB012LongCommands(t *testing.T) {
	d := start(t, nil)
	for _, shell := range []string{"bash", "dash"} {
		for _, size := range []int{131_071, 131_072, 1_000_000, 1_500_000} {
			text := ": " + strings.Repeat("A", size-2) + "\necho \"$#\" $LINENO; cat; exit 3"
			r := d.sh(text, "shell", shell, "stdin", "in")
			if r.code() != 3 || !strings.HasSuffix(r.Stdout, "in") || !strings.HasPrefix(r.Stdout, "0") {
				t.Fatalf("%s, %d bytes: %+v", shell, size, r)
			}
		}
	}
	if r := d.sh(strings.Repeat("#", 1536<<10+1)); r.Status != 422 || r.Field != "command" {
		t.Fatalf("%+v", r)
	}
	expect(t, d.exec(request{"argv": []string{"true", strings.Repeat("a", 131_071)}}), 0, "")
	if r := d.exec(request{"argv": []string{"true", strings.Repeat("a", 131_072)}}); r.Status != 422 || r.Reason != "argument_list_too_long" {
		t.Fatalf("%+v", r)
	}
	expect(t, d.sh("echo well"), 0, "well\n")
}

func TestB013EnvironmentTooLarge(t *testing.T) {
	d := start(t, nil)
	large := map[string]string{}
	for i := range 19 {
		large[fmt.Sprint("E", i)] = strings.Repeat("x", 110_370) // with the kernel's own share just over 2 MiB
	}
	if r := d.sh("true", "env", large); r.Status != 422 || r.Reason != "argument_list_too_long" {
		t.Fatalf("%+v", r)
	}
	large["F"], large["G"] = strings.Repeat("x", 110_000), strings.Repeat("x", 110_000)
	if r := d.sh("true", "env", large); r.Status != 422 || r.Field != "env" {
		t.Fatalf("%+v", r)
	}
	expect(t, d.sh("/bin/echo hi"), 0, "hi\n")
}

func TestB014EnvironmentIsExact(t *testing.T) {
	d := start(t, settings{"env": map[string]string{"BASE": "b\n", "OVER": "no"}})
	for _, value := range []string{"-----BEGIN\nPEM\n", "a=b=c", `'"$(touch ` + d.dir + `/pwn)`, "", "日本語🤣", "end\n"} {
		r := d.exec(request{"argv": []string{"/bin/sh", "-c", `printf %s "$K|$BASE|$OVER"`}, "env": map[string]string{"K": value, "OVER": "yes"}})
		expect(t, r, 0, value+"|b\n|yes")
	}
	if _, err := os.Stat(d.dir + "/pwn"); err == nil {
		t.Fatal("a value was run")
	}
	for _, key := range []string{"", "A=B", "A\x00"} {
		if r := d.sh("true", "env", map[string]string{key: "x"}); r.Status != 422 || r.Field != "env" {
			t.Fatalf("%q: %+v", key, r)
		}
	}
	r := d.exec(request{"argv": []string{"env"}})
	if strings.Contains(r.Stdout, "SANDMAND") || strings.Contains(r.Stdout, "canary") {
		t.Fatalf("the daemon's environment leaks: %s", r.Stdout)
	}
}

func TestB015Cwd(t *testing.T) {
	d := start(t, nil)
	odd := d.dir + "/a b\n-c"
	os.Mkdir(odd, 0o755)
	os.WriteFile(d.dir+"/file", nil, 0o644)
	for _, cwd := range []string{"/nope", d.dir + "/file"} {
		for _, r := range []result{d.sh("true; touch "+d.dir+"/marker", "cwd", cwd), d.exec(request{"argv": []string{"nosuch"}, "cwd": cwd})} {
			if r.Status != 422 || r.Reason != "cwd" || r.Errno == "" {
				t.Fatalf("%+v", r)
			}
		}
	}
	if _, err := os.Stat(d.dir + "/marker"); err == nil {
		t.Fatal("a part of the command ran")
	}
	expect(t, d.sh("true & wait; pwd", "cwd", "/usr"), 0, "/usr\n")
	expect(t, d.sh("pwd", "cwd", odd), 0, odd+"\n")
}

func TestB016Scripts(t *testing.T) {
	d := start(t, nil)
	for _, session := range []any{nil, "s"} {
		r := d.sh("cat <<'EOF' > "+d.dir+"/t\n$HOME `x` \\\\ \"q\"\nEOF", "session", session)
		expect(t, r, 0, "")
		expect(t, d.sh("cat "+d.dir+"/t", "session", session), 0, "$HOME `x` \\\\ \"q\"\n")
		expect(t, d.sh("for i in 1 2\ndo\necho $i\ndone", "session", session), 0, "1\n2\n")
		expect(t, d.sh(`echo 'a'"b"$((1+1))`, "session", session), 0, "ab2\n")
	}
}

func TestB024Codes(t *testing.T) {
	d := start(t, nil)
	for _, c := range []struct {
		command string
		code    int
		signal  int
		stdout  string
	}{
		{"kill -9 $$", 137, 9, ""}, {"kill -TERM $$", 143, 15, ""}, {"sh -c 'kill -SEGV $$'; echo $?", 0, 0, "139\n"},
		{"exit 300", 44, 0, ""}, {"nosuchcmd", 127, 0, ""}, {"/etc/passwd", 126, 0, ""}, {"exit 255", 255, 0, ""},
	} {
		for _, session := range []any{nil, "s"} {
			if session != nil && c.signal == 15 {
				continue // a session's shell ignores TERM, as interactive shells do
			}
			r := d.sh(c.command, "session", session)
			expect(t, r, c.code, c.stdout)
			if (c.signal == 0) != (r.Signal == nil) || (r.Signal != nil && *r.Signal != c.signal) || r.OOM {
				t.Fatalf("%s: %+v", c.command, r)
			}
			d.call("DELETE", "/v1/sessions/s", nil)
		}
	}
	for _, c := range []struct{ argv, reason string }{{"/no/such/bin", "not_found"}, {"nosuch", "not_found"}, {"/etc/passwd", "permission"}, {"/etc", "permission"}} {
		if r := d.exec(request{"argv": []string{c.argv}}); r.Status != 422 || r.Reason != c.reason {
			t.Fatalf("%s: %+v", c.argv, r)
		}
	}
	if r := d.sh("true", "shell", "nosuchshell"); r.Reason != "shell_not_found" {
		t.Fatalf("%+v", r)
	}
	if r := d.sh("true", "user", "nosuchuser"); r.Reason != "user" {
		t.Fatalf("%+v", r)
	}
}

func TestB033NulAndSurrogates(t *testing.T) {
	d := start(t, nil)
	for _, c := range []struct{ body, field string }{
		{`{"command":"echo a\u0000b"}`, "command"}, {`{"argv":["a","\u0000"]}`, "argv"}, {`{"command":"a","cwd":"/\u0000"}`, "cwd"},
		{`{"command":"a","env":{"A":"\u0000"}}`, "env"}, {`{"command":"a","session":"\u0000"}`, "session"}, {`{"command":"a","user":"\u0000"}`, "user"},
		{`{"command":"\ud800"}`, "command"}, {`{"command":"a","cwd":"\udc00x"}`, "cwd"}, {`{"command":"a","Command":"b"}`, "Command"},
	} {
		status, raw := d.call("POST", "/v1/exec", c.body)
		if r := decode(t, raw); status != 422 || r.Field != c.field {
			t.Fatalf("%s: %d %s", c.body, status, raw)
		}
	}
	expect(t, d.exec(request{"command": "od -An -tx1", "stdin": "\x00a\x00"}), 0, " 00 61 00\n")
	expect(t, d.sh("printf %s '🤣'"), 0, "🤣")
}

func TestB040NoNewlineIsKept(t *testing.T) {
	d := start(t, nil)
	expect(t, d.sh("printf 'prompt> '; printf done"), 0, "prompt> done")
	expect(t, d.sh("printf ''"), 0, "")
	expect(t, d.sh(`printf '\n\n'`), 0, "\n\n")
}

func TestB042AnyBytes(t *testing.T) {
	d := start(t, nil)
	expect(t, d.sh(`printf 'a\377\376b\000c'`), 0, "a\uFFFD\uFFFDb\x00c")
	expect(t, d.sh(`printf '\355\240\200'`), 0, "\uFFFD\uFFFD\uFFFD")
	expect(t, d.sh(`printf '\342\211'`), 0, "\uFFFD")
	r := d.sh("head -c 1000000 /dev/urandom | tee "+d.dir+"/r", "encoding", "base64")
	got, err := base64.StdEncoding.DecodeString(r.Stdout)
	want, _ := os.ReadFile(d.dir + "/r")
	if err != nil || string(got) != string(want) {
		t.Fatalf("%v, %d bytes", err, len(got))
	}
}

func TestB044StreamsApartAndMerged(t *testing.T) {
	d := start(t, nil)
	r := d.sh("for i in $(seq 1000); do echo o$i; echo e$i >&2; done")
	if strings.Count(r.Stdout, "o") != 1000 || strings.Count(r.Stderr, "e") != 1000 {
		t.Fatal("a stream is not whole")
	}
	r = d.sh("for i in $(seq 500); do echo o$i; echo e$i >&2; done", "merge_stderr", true)
	for i := range 500 {
		if want := fmt.Sprintf("o%d\ne%d\n", i+1, i+1); !strings.Contains(r.Stdout, want) {
			t.Fatalf("order lost at %d", i)
		}
	}
}

func TestB045NoDeadlock(t *testing.T) {
	d := start(t, nil)
	r := d.sh("head -c 2097152 /dev/zero >&2; head -c 2097152 /dev/zero; wc -c", "stdin", strings.Repeat("i", 1<<20))
	if r.code() != 0 || r.ErrBytes != 2<<20 || !strings.HasSuffix(r.Stdout, "1048576\n") {
		t.Fatalf("%d %d", r.code(), r.ErrBytes)
	}
}

func TestSameIdNeverRunsTwice(t *testing.T) {
	d := start(t, nil)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			expect(t, d.sh("echo x >> "+d.dir+"/runs; sleep 0.2; echo once", "id", "one"), 0, "once\n")
		})
	}
	group.Wait()
	if raw, _ := os.ReadFile(d.dir + "/runs"); string(raw) != "x\n" {
		t.Fatalf("%q", raw)
	}
	if r := d.sh("echo other", "id", "one"); r.Status != 409 || !strings.HasSuffix(r.Type, "exec-id-conflict") {
		t.Fatalf("%+v", r)
	}
	if a, b := d.sh("true", "cwd", "/nope", "id", "bad"), d.sh("true", "cwd", "/nope", "id", "bad"); a.Reason != "cwd" || b.Reason != "cwd" {
		t.Fatalf("%+v %+v", a, b)
	}
}

func TestRecordsAreBoundedAndExpiredIsTold(t *testing.T) {
	d := start(t, settings{"max_execs": 3})
	for i := range 6 {
		d.sh("true", "id", fmt.Sprint("n", i))
	}
	if status, raw := d.call("GET", "/v1/execs/n0", nil); status != 410 {
		t.Fatalf("%d %s", status, raw)
	}
	if r := d.sh("true", "id", "n0"); r.Status != 410 {
		t.Fatalf("a dropped id ran again: %+v", r)
	}
	if status, _ := d.call("GET", "/v1/execs/never", nil); status != 404 {
		t.Fatal(status)
	}
}

func TestARecordSaysWhatWasAskedFor(t *testing.T) {
	d := start(t, nil)
	d.sh("echo hi", "id", "text", "cwd", "/tmp")
	d.exec(request{"argv": []string{"echo", "hi"}, "id": "list"})
	for id, want := range map[string]string{"text": `"command":"echo hi","cwd":"/tmp"`, "list": `"argv":["echo","hi"]`} {
		status, raw := d.call("GET", "/v1/execs/"+id, nil)
		if text := string(raw); status != 200 || !strings.Contains(text, `"created_at":`) || !strings.Contains(text, want) || !strings.Contains(text, `"stdout":"hi\n"`) {
			t.Fatalf("%d %s", status, raw)
		}
	}
}

func TestProbesLeaveNoRecord(t *testing.T) {
	d := start(t, nil)
	var health struct{ Self string }
	_, raw := d.call("GET", "/health", nil)
	if err := json.Unmarshal(raw, &health); err != nil || health.Self == "" {
		t.Fatalf("%s %v", raw, err)
	}
	for range 3 {
		if r := d.exec(request{"argv": []string{health.Self, "noop"}}); r.Status != 200 || r.code() != 0 {
			t.Fatalf("%+v", r)
		}
	}
	d.exec(request{"argv": []string{"true"}, "id": "mine"})
	if _, raw := d.call("GET", "/v1/execs", nil); strings.Count(string(raw), `"id":`) != 1 || !strings.Contains(string(raw), `"id":"mine"`) {
		t.Fatalf("%s", raw)
	}
	if _, raw := d.call("GET", "/v1/info", nil); !strings.Contains(string(raw), `"kept":1`) || !strings.Contains(string(raw), `"running":0`) {
		t.Fatalf("%s", raw)
	}
}

func TestInvalidNamesEachFieldAsTheServiceDoes(t *testing.T) {
	d := start(t, nil)
	status, raw := d.call("POST", "/v1/exec", request{"command": "true", "shape": 1})
	if text := string(raw); status != 422 || !strings.Contains(text, `"type":"urn:sandman:problem:invalid"`) ||
		!strings.Contains(text, `"errors":[{"field":"shape","message":"unknown field"}]`) {
		t.Fatalf("%d %s", status, raw)
	}
}

func TestChildrenStartClean(t *testing.T) {
	d := start(t, nil)
	r := d.exec(request{"argv": []string{"/bin/sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status | sort -u; ls /proc/self/fd | wc -l; umask"}})
	if !strings.Contains(r.Stdout, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n4\n0022\n") {
		t.Fatalf("%q", r.Stdout)
	}
}

func TestAuthorization(t *testing.T) {
	d := start(t, nil)
	good := token
	for _, path := range []string{"/v1/exec", "/v1/execs", "/v1/connect", "/v1/files?path=/", "/v1/archive", "/", "/nope", "//health", "/health/", "/HEALTH", "/v1/../health", "/v1/info"} {
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + good, good} {
			if status := d.raw(t, path, header); status != 401 {
				t.Fatalf("%s with %q: %d", path, header, status)
			}
		}
	}
	if d.raw(t, "/v1/info", "Bearer "+good) != 200 || d.raw(t, "/health", "") != 200 {
		t.Fatal("the good ones are refused")
	}
}
