package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestB001BackgroundChildDoesNotDelayTheEnd(t *testing.T) {
	d := start(t, nil)
	for i, command := range []string{
		"sleep 611.%d & echo started", "(sleep 611.%d &); echo started", "setsid sleep 611.%d & echo started",
		"nohup sleep 611.%d & echo started", "env -i /bin/sleep 611.%d & echo started",
	} {
		mark := fmt.Sprintf("611.%d", i)
		r := d.sh(fmt.Sprintf(command, i), "timeout_seconds", 30)
		expect(t, r, 0, "started\n")
		within(t, r, 0, 0.5)
		if r.TimedOut || count(t, "sleep "+mark) != 1 {
			t.Fatalf("%s: timed_out %v, alive %d", command, r.TimedOut, count(t, "sleep "+mark))
		}
	}
}

func TestB001LeftoverIsDrainedAndNeverBlocked(t *testing.T) {
	d := start(t, nil)
	r := d.sh("(sleep 0.2; head -c 300000 /dev/zero; echo done > "+d.dir+"/mark) & echo started", "id", "left")
	expect(t, r, 0, "started\n")
	eventually(t, "the leftover finished its writing", func() bool { _, err := os.Stat(d.dir + "/mark"); return err == nil })
	if r := decode(t, second(d.call("GET", "/v1/execs/left", nil))); r.OutBytes != 8 || r.Stdout != "started\n" {
		t.Fatalf("the record changed: %+v", r)
	}
	if _, late := d.call("GET", "/v1/execs/left/output?late=true", nil); len(late) == 0 {
		t.Fatal("nothing of the leftover's output is kept")
	}
}

func second(_ int, raw []byte) []byte { return raw }

func TestB003TimeoutTakesTheWholeTree(t *testing.T) {
	d := start(t, nil)
	for range 5 {
		r := d.sh("sleep 612 & setsid sleep 612 & (setsid env -i setsid /bin/sleep 612 &) ; sleep 612", "timeout_seconds", 0.3)
		if !r.TimedOut || r.code() == 0 || count(t, "sleep 612") != 0 {
			t.Fatalf("timed_out %v, code %d, left %d", r.TimedOut, r.code(), count(t, "sleep 612"))
		}
		within(t, r, 0.3, 1)
	}
}

func TestB003TimeoutTakesNothingElse(t *testing.T) {
	d := start(t, nil)
	expect(t, d.sh("sleep 613 >/dev/null 2>&1 & echo ok"), 0, "ok\n")
	d.sh("sleep 614", "timeout_seconds", 0.2)
	if count(t, "sleep 613") != 1 {
		t.Fatal("another exec's process was killed")
	}
}

func TestB003ForkBombIsCaught(t *testing.T) {
	d := start(t, nil)
	r := d.sh(`f() { setsid sh -c 'while :; do sleep 0.03 & setsid sleep 0.5 & [ $(jobs -p | wc -l) -gt 9 ] && wait; done; : bomb-615' & }; f; f; f; wait`,
		"timeout_seconds", 0.5, "grace_seconds", 0)
	if !r.TimedOut {
		t.Fatalf("%+v", r)
	}
	if n := count(t, "bomb-615"); n != 0 {
		t.Fatalf("%d left", n)
	}
}

func TestB005IgnoredTermIsFollowedByKill(t *testing.T) {
	r := start(t, nil).sh("trap '' TERM INT HUP; echo go; while :; do :; done", "timeout_seconds", 0.5, "grace_seconds", 0.5)
	expect(t, r, 137, "go\n")
	within(t, r, 1, 1.5)
	if !r.TimedOut || r.OOM || *r.Signal != 9 {
		t.Fatalf("%+v", r)
	}
}

func TestB006OutputBeforeTheTimeoutIsKept(t *testing.T) {
	r := start(t, nil).sh("echo before; sleep 8; echo after", "timeout_seconds", 0.5)
	within(t, r, 0.5, 1)
	if r.Stdout != "before\n" || !r.TimedOut {
		t.Fatalf("%+v", r)
	}
}

func TestB030NoFixedLatency(t *testing.T) {
	d := start(t, nil)
	begun := time.Now()
	for range 50 {
		expect(t, d.exec(request{"argv": []string{"true"}}), 0, "")
	}
	if took := time.Since(begun); took > slow*50*20*time.Millisecond {
		t.Fatalf("50 in %v", took)
	}
}

func TestB031BackgroundOutlivesItsCall(t *testing.T) {
	d := start(t, nil)
	status, raw := d.call("POST", "/v1/exec", request{"command": "while :; do echo tick; sleep 0.05; done", "background": true, "id": "server"})
	if r := decode(t, raw); status != 202 || r.State != "running" || r.PID == 0 {
		t.Fatalf("%d %s", status, raw)
	}
	d.sh("true", "session", "other")
	d.call("DELETE", "/v1/sessions/other", nil)
	eventually(t, "it goes on", func() bool {
		r := decode(t, second(d.call("GET", "/v1/execs/server", nil)))
		return r.State == "running" && strings.Count(r.Stdout, "tick") > 5
	})
}

func TestSignalledCountsAllThatGotIt(t *testing.T) {
	d := start(t, nil)
	for i := range 20 {
		id := fmt.Sprint("counted", i)
		d.call("POST", "/v1/exec", request{"command": "sleep 621 & setsid sleep 621 & sleep 621; :", "background": true, "id": id})
		eventually(t, "all run", func() bool { return count(t, "sleep 621") == 4 })
		_, raw := d.call("POST", "/v1/execs/"+id+"/signal", request{"signal": "TERM"})
		if r := decode(t, raw); r.Signalled != 4 {
			t.Fatalf("%s", raw)
		}
		eventually(t, "all are gone", func() bool { return count(t, "sleep 621") == 0 })
	}
}

func TestB032ListAndKillById(t *testing.T) {
	d := start(t, nil)
	for i := range 3 {
		d.call("POST", "/v1/exec", request{"command": "sleep 616 & sleep 616", "background": true, "id": fmt.Sprint("x", i)})
	}
	d.sh("true")
	_, raw := d.call("GET", "/v1/execs?state=running", nil)
	if strings.Count(string(raw), `"state":"running"`) != 3 || !strings.Contains(string(raw), `"command":"sleep 616`) {
		t.Fatalf("%s", raw)
	}
	eventually(t, "all run", func() bool { return count(t, "sleep 616") == 9 })
	_, raw = d.call("POST", "/v1/execs/x1/signal", request{"signal": "KILL"})
	if r := decode(t, raw); r.Signalled < 3 {
		t.Fatalf("%s", raw)
	}
	if r := decode(t, second(d.call("GET", "/v1/execs/x1?wait=5", nil))); r.code() != 137 || r.OOM {
		t.Fatalf("%+v", r)
	}
	for range 2 {
		status, raw := d.call("POST", "/v1/execs/x1/signal", request{"signal": "SIGTERM", "scope": "process"})
		if r := decode(t, raw); status != 200 || r.Signalled != 0 || r.State != "exited" {
			t.Fatalf("%d %s", status, raw)
		}
	}
	if count(t, "sleep 616") != 6 {
		t.Fatalf("%d left", count(t, "sleep 616"))
	}
}

func TestStatusesAreNeverStolen(t *testing.T) {
	d := start(t, nil)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for k := range 10 {
				n := (i*10 + k) % 250
				r := d.exec(request{"argv": []string{"/bin/sh", "-c", fmt.Sprintf("(setsid sleep 0.01 &); exit %d", n)}})
				if r.code() != n {
					t.Errorf("got %d, want %d", r.code(), n)
				}
			}
		})
	}
	group.Wait()
}
