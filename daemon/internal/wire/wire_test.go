package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/spool"
)

func decodeRequest(body string) (*execs.Spec, error) {
	object, err := ParseObject([]byte(body))
	if err != nil {
		return nil, err
	}
	return DecodeExec(object, false, nil)
}

func TestDecodeExecRefusals(t *testing.T) {
	for _, c := range []struct{ body, field string }{
		{`{}`, "command"}, {`{"command":"a","argv":["b"]}`, "command"}, {`{"argv":[]}`, "argv"}, {`{"argv":[""]}`, "argv"},
		{`{"argv":"a"}`, "argv"}, {`{"argv":[1]}`, "argv"}, {`{"command":1}`, "command"}, {`{"command":"a","timeout_seconds":0}`, "timeout_seconds"},
		{`{"command":"a","timeout_seconds":-1}`, "timeout_seconds"}, {`{"command":"a","timeout_seconds":1e12}`, "timeout_seconds"},
		{`{"command":"a","timeout_seconds":"30s"}`, "timeout_seconds"}, {`{"command":"a","timeout_seconds":true}`, "timeout_seconds"},
		{`{"command":"a","grace_seconds":61}`, "grace_seconds"}, {`{"command":"a","env":[]}`, "env"}, {`{"command":"a","env":{"A":1}}`, "env"},
		{`{"command":"a","env":{"\ud800":"x"}}`, "env"}, {`{"command":"a","encoding":"latin1"}`, "encoding"},
		{`{"command":"a","max_output_bytes":-1}`, "max_output_bytes"}, {`{"command":"a","max_output_bytes":1.5}`, "max_output_bytes"},
		{`{"command":"a","id":""}`, "id"}, {`{"command":"a","id":"a b"}`, "id"}, {`{"command":"a","id":"` + strings.Repeat("x", 129) + `"}`, "id"},
		{`{"command":"a","stdin":"x","stdin_base64":"eA=="}`, "stdin"}, {`{"command":"a","stdin_base64":"!"}`, "stdin_base64"},
		{`{"command":"a","pty":{"rows":0}}`, "pty.rows"}, {`{"command":"a","pty":{"depth":1}}`, "pty.depth"}, {`{"command":"a","background":1}`, "background"},
		{`{"command":"a","session":"s","pty":{}}`, "pty"}, {`{"argv":["a"],"session":"s"}`, "argv"}, {`{"command":"a","CWD":"/"}`, "CWD"},
	} {
		_, err := decodeRequest(c.body)
		if p := problem.Of(err); err == nil || p.Status != 422 || p.Members["field"] != c.field {
			t.Errorf("%s: %v %v", c.body, err, p.Members)
		}
	}
	for _, body := range []string{``, `[]`, `null`, `"x"`, `{"command":`, `{"command":"a"}x`} {
		if _, err := decodeRequest(body); err == nil || problem.Of(err).Status != 400 {
			t.Errorf("%q: %v", body, err)
		}
	}
	if _, err := decodeRequest("{\"command\":\"\xff\"}"); err == nil || problem.Of(err).Status != 422 {
		t.Errorf("bad UTF-8: %v", err)
	}
}

func TestDecodeExecNullsAndDefaults(t *testing.T) {
	spec, err := decodeRequest(`{"command":"","cwd":null,"env":null,"stdin":null,"timeout_seconds":null,"grace_seconds":0,"user":null,
		"session":null,"id":null,"encoding":null,"max_output_bytes":null,"pty":null,"shell":null}`)
	if err != nil || spec.Timeout != 0 || spec.Grace != 0 || spec.MaxOutput != execs.DefaultMaxOutput || spec.StdinMode != execs.StdinNone {
		t.Fatalf("%+v %v", spec, err)
	}
	spec, err = decodeRequest(`{"argv":["a"],"timeout_seconds":0.5,"stdin":""}`)
	if err != nil || spec.Timeout != 500*time.Millisecond || spec.StdinMode != execs.StdinData {
		t.Fatalf("%+v %v", spec, err)
	}
	if spec, _ = decodeRequest(`{"argv":["a"],"timeout_seconds":1e-12}`); spec.Timeout <= 0 {
		t.Fatal("a tiny time-out became none")
	}
}

func TestB033LoneSurrogates(t *testing.T) {
	for raw, want := range map[string]bool{
		`"\ud83e\udd23"`: false, `"\ud800"`: true, `"\udc00"`: true, `"\ud800x"`: true, `"\ud800\ud800"`: true,
		`"\\ud800"`: false, `"\\\ud800"`: true, `"é🤣"`: false, `"\u00e9"`: false, `"\ud83e\udd23\ud83e"`: true, `"\uDBFF\uDFFF"`: false,
	} {
		if got := loneSurrogate([]byte(raw)); got != want {
			t.Errorf("%s: %v", raw, got)
		}
	}
}

// The expected texts are what Python's bytes.decode("utf-8", "replace") gives.
func TestB041B042TextIsPythons(t *testing.T) {
	for raw, want := range map[string]string{
		"a\xff\xfeb\x00c": "a\uFFFD\uFFFDb\x00c", "\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD", "\xe2\x89": "\uFFFD", "\xe2\x89x": "\uFFFDx",
		"\xf0\x9f\xa4": "\uFFFD", "\xf0\x9f\xa4\xf0\x9f\xa4\xa3": "\uFFFD🤣", "\xc0\x80": "\uFFFD\uFFFD", "\xf4\x90\x80\x80": "\uFFFD\uFFFD\uFFFD\uFFFD",
		"\xe0\x80\x80": "\uFFFD\uFFFD\uFFFD", "≤\x80": "≤\uFFFD", "": "", "\"\\\n\t\r\x1b\x7f": "\"\\\n\t\r\x1b\x7f",
	} {
		for cut := range len(raw) + 1 { // also when it comes in two parts
			out, rest := AppendJSONText([]byte{'"'}, []byte(raw[:cut]), false)
			out, _ = AppendJSONText(out, []byte(raw[cut-rest:]), true)
			var got string
			if err := json.Unmarshal(append(out, '"'), &got); err != nil || got != want {
				t.Errorf("%q cut at %d: %q %v, not %q", raw, cut, got, err, want)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		state spool.State
		limit int64
		want  span
	}{
		{spool.State{HeadEnd: 10, TailStart: 10, Total: 10, End: 10}, 100, span{10, 10, 10}},
		{spool.State{HeadEnd: 10, TailStart: 10, Total: 10, End: -1}, 10, span{10, 10, 10}},
		{spool.State{HeadEnd: 10, TailStart: 10, Total: 10, End: 10}, 4, span{2, 8, 10}},
		{spool.State{HeadEnd: 10, TailStart: 10, Total: 10, End: 10}, 0, span{0, 10, 10}},
		{spool.State{HeadEnd: 4, TailStart: 90, Total: 100, End: 100}, 100, span{4, 90, 100}},
		{spool.State{HeadEnd: 4, TailStart: 90, Total: 100, End: 100}, 7, span{4, 97, 100}},
		{spool.State{HeadEnd: 0, TailStart: 100, Total: 100, End: 100}, 50, span{0, 100, 100}},
		{spool.State{HeadEnd: 10, TailStart: 10, Total: 10, End: 10}, 9, span{5, 6, 10}},
	} {
		if got := choose(c.state, c.limit); got != c.want {
			t.Errorf("%+v in %d: %+v, not %+v", c.state, c.limit, got, c.want)
		}
	}
}

func TestDecodeControl(t *testing.T) {
	good := map[string]string{
		`{"op":"ping"}`: "ping", `{"op":"start","ch":1,"argv":["a"],"stdin":"stream","credit":5,"overflow":"drop","follow":false}`: "start",
		`{"op":"attach","ch":4294967295,"id":"x"}`: "attach", `{"op":"resize","ch":0,"rows":1,"cols":2}`: "resize", `{"op":"credit","ch":1,"bytes":1}`: "credit",
		`{"op":"signal","ch":1,"signal":9}`: "signal",
	}
	for raw, op := range good {
		if c, err := DecodeControl([]byte(raw)); err != nil || c.Op != op {
			t.Errorf("%s: %+v %v", raw, c, err)
		}
	}
	for _, raw := range []string{`{}`, `{"op":"eof"}`, `{"op":"eof","ch":-1}`, `{"op":"eof","ch":1.5}`, `{"op":"eof","ch":4294967296}`, `{"op":"credit","ch":1,"bytes":0}`,
		`{"op":"start","ch":1,"argv":["a"],"stdin":"text"}`, `{"op":"signal","ch":1}`, `{"op":"attach","ch":1}`, `{"op":"eof","ch":1,"x":1}`, `{"op":"start","ch":1,"argv":["a"],"bytes":1}`} {
		if _, err := DecodeControl([]byte(raw)); err == nil {
			t.Errorf("%s was taken", raw)
		}
	}
}

func FuzzDecodeExec(f *testing.F) {
	f.Add(`{"command":"a","env":{"A":"b"},"timeout_seconds":1}`)
	f.Add(`{"argv":["\ud83e\udd23"],"pty":{"rows":1}}`)
	f.Fuzz(func(t *testing.T, body string) {
		spec, err := decodeRequest(body)
		if err == nil {
			for _, text := range append(append([]string{spec.Command, spec.Cwd, spec.User, spec.ID}, spec.Argv...), spec.Shell) {
				if strings.IndexByte(text, 0) >= 0 || !utf8.ValidString(text) {
					t.Fatalf("%q came through", text)
				}
			}
			_ = spec.Fingerprint()
		} else if status := problem.Of(err).Status; status != 400 && status != 422 {
			t.Fatalf("status %d: %v", status, err)
		}
	})
}

func FuzzDecodeControl(f *testing.F) {
	f.Add([]byte(`{"op":"start","ch":1,"argv":["a"]}`))
	f.Add([]byte(`{"op":"resize","ch":1,"rows":2}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := DecodeControl(raw); err == nil && c.Op == "start" && c.Spec == nil {
			t.Fatal("a start without a request")
		}
	})
}

func FuzzStdinFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 'x'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		channel, payload, err := DecodeStdin(raw)
		if err == nil && (raw[0] != KindStdin || len(payload) != len(raw)-StdinHeader || AppendOutput(nil, 0, channel, 0)[4] != raw[4]) {
			t.Fatal("not what was sent")
		}
	})
}

func FuzzJSONText(f *testing.F) {
	f.Add([]byte("a\xff≤"), 2)
	f.Fuzz(func(t *testing.T, raw []byte, cut int) {
		cut = max(0, min(cut, len(raw)))
		whole, _ := AppendJSONText(nil, raw, true)
		out, rest := AppendJSONText(nil, raw[:cut], false)
		out, _ = AppendJSONText(out, raw[cut-rest:], true)
		if string(out) != string(whole) || !json.Valid(append(append([]byte{'"'}, out...), '"')) {
			t.Fatalf("%q, not %q", out, whole)
		}
	})
}
