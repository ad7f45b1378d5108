package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestB034B036B044SocketExec(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	for range 50 { // one terminal event after all output, and the channel's number is free again
		p.send(request{"op": "start", "ch": 7, "command": "seq 1 500; echo e >&2; exit 4"})
		out, errors, end := p.collect(7)
		if strings.Count(out, "\n") != 500 || errors != "e\n" || end.Op != "exit" || end.code() != 4 || end.OutBytes != int64(len(out)) {
			t.Fatalf("%d %q %+v", len(out), errors, end)
		}
	}
	p.send(request{"op": "attach", "ch": 8, "id": d.sh("echo old; exit 2", "id", "old").ID, "stdout_offset": 1})
	m := p.until("started")
	if !m.Attached {
		t.Fatalf("%+v", m)
	}
	if m = p.until("data"); m.offset != 1 || string(m.data) != "ld\n" {
		t.Fatalf("%+v", m)
	}
	if m = p.until("exit"); m.code() != 2 {
		t.Fatalf("%+v", m)
	}
	for _, c := range []struct {
		message request
		typ     string
	}{
		{request{"op": "attach", "ch": 9, "id": "nope"}, "exec-not-found"},
		{request{"op": "attach", "ch": 9, "id": "old", "stdout_offset": 99}, "offset-out-of-range"},
		{request{"op": "attach", "ch": 9, "id": "old", "stdout_offset": -1}, "invalid"},
		{request{"op": "start", "ch": 9, "argv": []string{"/nope"}}, "exec-start-failed"},
		{request{"op": "start", "ch": 9, "command": "x", "what": 1}, "invalid"},
		{request{"op": "dance"}, "invalid"},
	} {
		p.send(c.message)
		if m, _ := p.read(); m.Op != "error" || !strings.HasSuffix(m.Type, c.typ) {
			t.Fatalf("%v: %+v", c.message, m)
		}
	}
}

func TestB008B048SocketStdin(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "argv": []string{"sha256sum"}, "stdin": "stream"})
	started := p.until("started")
	credit, left, sent := started.StdinCredit, int64(5<<20), int64(0)
	for sent < left {
		if credit == 0 {
			credit += p.until("stdin_credit").Bytes
			continue
		}
		n := min(credit, left-sent, 200_000)
		p.stdin(1, strings.Repeat("s", int(n)))
		sent, credit = sent+n, credit-n
	}
	p.send(request{"op": "eof", "ch": 1})
	want := d.sh("head -c 5242880 /dev/zero | tr '\\0' s | sha256sum").Stdout
	if m := p.until("data"); string(m.data) != want {
		t.Fatalf("%q, not %q", m.data, want)
	}
	p.until("exit")
	p.send(request{"op": "start", "ch": 2, "argv": []string{"cat"}, "stdin": "stream"})
	p.until("started")
	p.stdin(2, strings.Repeat("x", 256<<10+1))
	if m, _ := p.read(); m.Op != "error" || !strings.HasSuffix(m.Type, "frame-too-large") {
		t.Fatalf("%+v", m)
	}
	p.send(request{"op": "eof", "ch": 2})
	p.until("exit")
}

func TestB051NoGapAndNoDoubleOverReconnects(t *testing.T) {
	d := start(t, nil)
	p := d.connect()
	p.send(request{"op": "start", "ch": 1, "id": "seq", "command": "for i in 1 2 3 4 5; do seq 1 40000; sleep 0.05; done; exit 9", "credit": 1 << 30})
	var out strings.Builder
	var end message
	for end.Op == "" {
		budget := out.Len() + rand.IntN(100_000)
		for {
			m, err := p.read()
			if err != nil {
				t.Fatal(err)
			}
			if m.Op == "data" {
				if m.offset != int64(out.Len()) {
					t.Fatalf("offset %d at %d", m.offset, out.Len())
				}
				out.Write(m.data)
			}
			if m.Op == "exit" {
				end = m
				break
			}
			if out.Len() > budget {
				p.nc.Close()
				p = d.connect()
				p.send(request{"op": "attach", "ch": 1, "id": "seq", "stdout_offset": out.Len(), "credit": 1 << 30})
				break
			}
		}
	}
	var want strings.Builder
	for range 5 {
		for i := 1; i <= 40000; i++ {
			fmt.Fprintln(&want, i)
		}
	}
	if out.String() != want.String() || end.code() != 9 {
		t.Fatalf("%d bytes of %d, code %d", out.Len(), want.Len(), end.code())
	}
}
