package main

import (
	"strings"
	"testing"
	"time"
)

func TestB053GapIsTold(t *testing.T) {
	d := start(t, settings{"spool_bytes": 1 << 20, "memory_bytes": 8 << 20})
	expect(t, d.sh("head -c 20000000 /dev/zero | tr '\\0' x", "id", "big", "max_output_bytes", 0), 0, "")
	p := d.connect()
	p.send(request{"op": "attach", "ch": 1, "id": "big", "stdout_offset": 100, "credit": 1 << 30})
	at, gaps := int64(100), int64(0)
	for {
		m, err := p.read()
		if err != nil {
			t.Fatal(err)
		}
		switch m.Op {
		case "gap":
			if m.From != at || m.To <= m.From || m.Stream != "stdout" {
				t.Fatalf("%+v at %d", m, at)
			}
			gaps, at = gaps+m.To-m.From, m.To
			continue
		case "data":
			if m.offset != at {
				t.Fatalf("offset %d at %d", m.offset, at)
			}
			at += int64(len(m.data))
			continue
		case "exit":
			if at != 20_000_000 || gaps < 18_000_000 || m.OutBytes != 20_000_000 {
				t.Fatalf("at %d, gaps %d, %+v", at, gaps, m)
			}
		default:
			continue
		}
		break
	}
}

func TestBlockingReaderLosesNothing(t *testing.T) {
	d := start(t, settings{"spool_bytes": 1 << 20, "memory_bytes": 8 << 20})
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "command": "head -c 8000000 /dev/zero; echo end >&2", "credit": 1 << 16})
	time.Sleep(300 * time.Millisecond) // the command has filled what there is, and waits
	out, errors, end := p.collect(1)
	if len(out) != 8_000_000 || errors != "end\n" || end.code() != 0 {
		t.Fatalf("%d %q %+v", len(out), errors, end)
	}
}

func TestB054B055DeadWatchersCostNothing(t *testing.T) {
	d := start(t, nil)
	d.call("POST", "/v1/exec", request{"command": "sleep 1; seq 1 100000", "background": true, "id": "w"})
	alive := d.connect()
	alive.send(request{"op": "attach", "ch": 1, "id": "w"})
	before := descriptors(t, d)
	for range 40 {
		dead := d.connect()
		dead.send(request{"op": "attach", "ch": 1, "id": "w", "credit": 10})
		dead.nc.Close()
	}
	out, _, end := alive.collect(1)
	if strings.Count(out, "\n") != 100_000 || end.code() != 0 {
		t.Fatalf("%d lines, %+v", strings.Count(out, "\n"), end)
	}
	eventually(t, "the descriptors are given back", func() bool { return descriptors(t, d) <= before })
}

func TestB037OutputFloodKeepsMemoryFlat(t *testing.T) {
	d := start(t, settings{"spool_dir": t.TempDir()})
	r := d.sh("yes 0123456789 | head -c 200000000", "max_output_bytes", 1000)
	if r.OutBytes != 200_000_000 || r.Truncated != 199_999_000 || len(r.Stdout) != 1000 || r.Head != 500 || r.code() != 0 {
		t.Fatalf("%+v", r.OutBytes)
	}
	if peak := status(t, d, "VmHWM"); peak > 64<<10*raceFactor {
		t.Fatalf("the daemon's peak is %d KiB", peak)
	}
}

func TestB059Terminal(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "argv": []string{"bash", "--norc"}, "pty": request{"rows": 33, "cols": 101}, "env": map[string]string{"PS1": "READY> "}})
	p.until("started")
	seen := ""
	wait := func(text string) {
		t.Helper()
		for !strings.Contains(seen, text) {
			m, err := p.read()
			if err != nil || m.Op == "exit" {
				t.Fatalf("%q was never printed (%v %+v); seen %q", text, err, m, seen)
			}
			if m.Op == "data" {
				seen += string(m.data)
			}
		}
		seen = seen[strings.Index(seen, text)+len(text):]
	}
	wait("READY> ")
	p.stdin(1, "stty size; sleep 100\r")
	wait("33 101")
	time.Sleep(200 * time.Millisecond)
	p.stdin(1, "\x03")
	wait("READY> ")
	p.send(request{"op": "resize", "ch": 1, "rows": 20, "cols": 60})
	p.stdin(1, "echo $?; stty size\r")
	wait("130")
	wait("20 60")
	p.stdin(1, "exit 5\r")
	if m := p.until("exit"); m.code() != 5 {
		t.Fatalf("%+v", m)
	}
	p.send(request{"op": "start", "ch": 2, "argv": []string{"cat"}, "pty": request{}})
	p.until("started")
	p.send(request{"op": "eof", "ch": 2})
	if m := p.until("exit"); m.code() != 0 {
		t.Fatalf("%+v", m)
	}
	expect(t, d.exec(request{"argv": []string{"cat"}, "pty": request{}}), 0, "")
}
