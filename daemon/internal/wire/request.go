// Package wire is the protocol's text and bytes, without I/O: requests in, results and frames out.
package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/proc"
)

// MaxRequestBytes bounds an exec request: 1.5 MiB of shell text, escaped, with input beside it.
const MaxRequestBytes = 16 << 20

// Object is a request's top level, its members undecoded: names are exact, and each error can say which member.
type Object map[string]json.RawMessage

// ParseObject reads the top level of a request.
func ParseObject(raw []byte) (Object, error) {
	if !utf8.Valid(raw) {
		return nil, problem.Invalid("", "the body is not UTF-8")
	}
	var object Object
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return nil, &problem.Problem{Slug: "invalid-json", Title: "The body is not a JSON object", Status: http.StatusBadRequest,
			Detail: jsonDetail(err)}
	}
	return object, nil
}

func jsonDetail(err error) string {
	if syntax, ok := err.(*json.SyntaxError); ok {
		return fmt.Sprintf("syntax error at byte %d", syntax.Offset) // the error's text may quote the body
	}
	return "an object is expected"
}

// DecodeExec checks an exec request. stream allows the socket's form, in which stdin names a mode; members that it
// does not know are offered to other.
func DecodeExec(object Object, stream bool, other func(name string, value json.RawMessage) (bool, error)) (*execs.Spec, error) {
	spec := &execs.Spec{Grace: execs.DefaultGrace, MaxOutput: execs.DefaultMaxOutput}
	d := decoder{spec: spec, stream: stream}
	for name, value := range object {
		known, err := d.member(name, value)
		if !known && other != nil {
			known, err = other(name, value)
		}
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, problem.Invalid(clip(name), "unknown field")
		}
	}
	return spec, d.check()
}

func clip(name string) string {
	if len(name) > 100 {
		return strings.ToValidUTF8(name[:100], "") + "…"
	}
	return name
}

type decoder struct {
	spec                                 *execs.Spec
	stream                               bool
	hasCommand, hasArgv, hasText, hasB64 bool
}

func (d *decoder) member(name string, value json.RawMessage) (known bool, err error) {
	s := d.spec
	null := isNull(value)
	switch name {
	case "command":
		if !null {
			d.hasCommand = true
			s.Command, err = Text(name, value)
		}
	case "argv":
		if !null {
			d.hasArgv = true
			s.Argv, err = texts(name, value)
		}
	case "cwd":
		s.Cwd, err = optionalText(name, value)
	case "env":
		s.Env, err = environment(name, value)
	case "stdin":
		err = d.stdin(value)
	case "stdin_base64":
		if !null {
			d.hasB64 = true
			s.StdinMode = execs.StdinData
			s.Stdin, err = bytesOf(name, value)
		}
	case "timeout_seconds":
		s.Timeout, err = seconds(name, value, execs.MaxTimeout, false)
	case "grace_seconds":
		if !null {
			s.Grace, err = seconds(name, value, execs.MaxGrace, true)
		}
	case "user":
		s.User, err = optionalText(name, value)
	case "session":
		if s.Session, err = optionalText(name, value); err == nil && !null {
			err = CheckName(name, s.Session)
		}
	case "id":
		if s.ID, err = optionalText(name, value); err == nil && !null {
			err = CheckName(name, s.ID)
		}
	case "shell":
		s.Shell, err = optionalText(name, value)
	case "background":
		s.Background, err = flag(name, value)
	case "merge_stderr":
		s.MergeStderr, err = flag(name, value)
	case "encoding":
		var text string
		if text, err = optionalText(name, value); err == nil {
			if text != "" && text != "utf-8" && text != "base64" {
				err = problem.Invalid(name, `must be "utf-8" or "base64"`)
			}
			s.Base64 = text == "base64"
		}
	case "max_output_bytes":
		if !null {
			s.MaxOutput, err = Integer(name, value, 0, execs.MaxMaxOutput)
		}
	case "pty":
		if !null {
			s.PTY, err = Size(name, value)
		}
	default:
		return false, nil
	}
	return true, err
}

func (d *decoder) stdin(value json.RawMessage) error {
	if isNull(value) {
		return nil
	}
	text, err := anyText("stdin", value)
	if err != nil {
		return err
	}
	if !d.stream {
		d.hasText = true
		d.spec.StdinMode, d.spec.Stdin = execs.StdinData, []byte(text)
		return nil
	}
	switch text {
	case "none":
	case "stream":
		d.hasText = true
		d.spec.StdinMode = execs.StdinStream
	default:
		return problem.Invalid("stdin", `must be "none" or "stream"; text goes into stdin_base64`)
	}
	return nil
}

func (d *decoder) check() error {
	s := d.spec
	switch {
	case d.hasCommand == d.hasArgv:
		return problem.Invalid("command", "exactly one of command and argv is needed")
	case d.hasArgv && (len(s.Argv) == 0 || s.Argv[0] == ""):
		return problem.Invalid("argv", "must begin with a program")
	case d.hasText && d.hasB64:
		return problem.Invalid("stdin", "stdin and stdin_base64 exclude each other")
	case len(s.Command) > proc.MaxCommandBytes:
		return problem.Invalid("command", fmt.Sprintf("is longer than %d bytes; upload it as a file", proc.MaxCommandBytes))
	case s.Session != "" && s.PTY != nil:
		return problem.Invalid("pty", "a session's commands have no terminal of their own")
	case s.Session != "" && d.hasArgv:
		return problem.Invalid("argv", "a session runs shell text: use command")
	}
	if s.PTY != nil && d.stream && !d.hasB64 {
		s.StdinMode = execs.StdinStream
	}
	return nil
}

// environment checks names and values: what no process can be given is refused before anything runs.
func environment(field string, value json.RawMessage) (map[string]string, error) {
	if isNull(value) {
		return nil, nil
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal(value, &raw) != nil {
		return nil, problem.Invalid(field, "must be an object of strings")
	}
	env := make(map[string]string, len(raw))
	total := 0
	for key, item := range raw {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(key, utf8.RuneError) {
			return nil, problem.Invalid(field, "a name is empty or holds '=', NUL or half a surrogate pair")
		}
		text, err := Text(field, item)
		if err != nil {
			return nil, err
		}
		env[key] = text
		total += len(key) + len(text)
	}
	if total > 2<<20 {
		return nil, problem.Invalid(field, "is larger than any process can be given (2 MiB)")
	}
	return env, nil
}

// seconds decodes a duration; null and absence mean zero, which is "none".
func seconds(field string, value json.RawMessage, most time.Duration, zero bool) (time.Duration, error) {
	if isNull(value) {
		return 0, nil
	}
	var n float64
	if json.Unmarshal(value, &n) != nil || value[0] == '"' {
		return 0, problem.Invalid(field, "must be a number of seconds, or null")
	}
	if !(n > 0 || (zero && n == 0)) || math.IsInf(n, 0) || n > most.Seconds() {
		return 0, problem.Invalid(field, fmt.Sprintf("must be over 0 and at most %g", most.Seconds()))
	}
	if d := time.Duration(n * float64(time.Second)); d > 0 || n == 0 {
		return d, nil
	}
	return 1, nil // under a nanosecond is not "none"
}
