package wire

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/proc"
	"sandman.dev/daemon/internal/spool"
)

// chunkBytes of output are in memory at once while an answer is written.
const chunkBytes = 64 << 10

// View is how a result's output is shown.
type View struct {
	Base64 bool
	Limit  int64
	Output bool // false: counts alone, as the socket's exit message has it
	Asked  bool // with what was asked for, as a list shows it: for those who come by the id alone
}

// WriteResult writes an exec's result, or its state so far, as one JSON object. Output is copied from the spool in
// chunks: an answer of any size needs little memory.
func WriteResult(w io.Writer, e *execs.Exec, view View) error {
	out := AppendResultFields([]byte{'{'}, e)
	if view.Asked {
		out = appendAsked(out, e)
	}
	if !view.Output {
		_, err := w.Write(append(out, '}'))
		return err
	}
	encoding := "utf-8"
	if view.Base64 {
		encoding = "base64"
	}
	out = append(out, `,"encoding":"`+encoding+`"`...)
	var err error
	for _, stream := range []struct {
		name   string
		output *execs.Output
	}{{"stdout", e.Stdout}, {"stderr", e.Stderr}} {
		if out, err = writeStream(w, out, stream.name, stream.output.Spool, view); err != nil {
			return err
		}
	}
	_, err = w.Write(append(out, '}'))
	return err
}

// AppendResultFields appends the members that need no output.
func AppendResultFields(out []byte, e *execs.Exec) []byte {
	out = append(out, `"id":"`+e.ID+`"`...)
	spec := e.Spec
	if !e.Ended() {
		pid, started := e.PID()
		out = append(out, `,"state":"running","exit_code":null,"signal":null,"timed_out":false,"oom_killed":false,"usage":null`...)
		out = appendTime(append(out, `,"started_at":`...), started)
		out = append(out, `,"ended_at":null`...)
		out = append(out, `,"pid":`...)
		if pid == 0 {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendInt(out, int64(pid), 10)
		}
		out = appendCount(out, "stdout", e.Stdout)
		out = appendCount(out, "stderr", e.Stderr)
	} else {
		r, failure := e.Outcome()
		out = append(out, `,"state":"exited","exit_code":`...)
		if failure != nil { // it never ran: 0 would be a success
			out = append(out, "null"...)
		} else {
			out = strconv.AppendInt(out, int64(r.ExitCode), 10)
		}
		out = append(out, `,"signal":`...)
		if r.Signal == 0 {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendInt(out, int64(r.Signal), 10)
		}
		out = appendFlag(out, "timed_out", r.TimedOut)
		out = appendFlag(out, "oom_killed", r.OOMKilled)
		out = append(out, `,"usage":{"wall_seconds":`...)
		out = appendSeconds(out, r.Wall)
		out = appendSeconds(append(out, `,"user_seconds":`...), r.User)
		out = appendSeconds(append(out, `,"system_seconds":`...), r.System)
		out = append(out, `,"max_rss_bytes":`...)
		if r.SharedUsage {
			out = append(out, "null}"...)
		} else {
			out = append(strconv.AppendInt(out, r.MaxRSS, 10), '}')
		}
		out = appendTime(append(out, `,"started_at":`...), r.Started)
		out = appendTime(append(out, `,"ended_at":`...), r.Ended)
		out = strconv.AppendInt(append(out, `,"stdout_bytes":`...), r.StdoutBytes, 10)
		out = strconv.AppendInt(append(out, `,"stderr_bytes":`...), r.StderrBytes, 10)
		if spec.Session != "" {
			out = appendFlag(out, "session_new", r.SessionNew)
			out = appendFlag(out, "session_ended", r.SessionEnded)
		}
	}
	out = appendFlag(out, "background", spec.Background)
	out = append(out, `,"session":`...)
	if spec.Session == "" {
		return append(out, "null"...)
	}
	return append(out, `"`+spec.Session+`"`...)
}

func appendCount(out []byte, name string, o *execs.Output) []byte {
	return strconv.AppendInt(append(out, `,"`+name+`_bytes":`...), o.Spool.State().Total, 10)
}

func appendFlag(out []byte, name string, set bool) []byte {
	return strconv.AppendBool(append(out, `,"`+name+`":`...), set)
}

func appendSeconds(out []byte, d time.Duration) []byte {
	return strconv.AppendFloat(out, d.Seconds(), 'f', 6, 64)
}

func appendTime(out []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(out, "null"...)
	}
	return strconv.AppendFloat(out, float64(t.UnixMicro())/1e6, 'f', 6, 64)
}

// span is what an answer shows of one stream: [0, head) and [tail, end).
type span struct{ head, tail, end int64 }

// choose fits a stream into limit bytes: all of it, or its beginning and its end in equal parts.
func choose(state spool.State, limit int64) span {
	end := state.End
	if end < 0 {
		end = state.Total
	}
	headEnd, tailStart := min(state.HeadEnd, end), min(state.TailStart, end)
	if tailStart <= headEnd && end <= limit {
		return span{head: end, tail: end, end: end}
	}
	if tailStart <= headEnd {
		tailStart = 0 // all is kept: the limit alone makes the gap
	}
	head := min(headEnd, limit-limit/2)
	tail := max(tailStart, end-limit/2, head)
	return span{head: head, tail: tail, end: end}
}

// maxTries bounds how often an answer begins again because what it was to show was given up meanwhile.
const maxTries = 20

func writeStream(w io.Writer, out []byte, name string, s *spool.Spool, view View) ([]byte, error) {
	out = append(out, `,"`+name+`":"`...)
	writer := textWriter{w: w, out: out, spool: s}
	var part span
	for try := 0; ; try++ {
		var err error
		part = choose(s.State(), view.Limit)
		if view.Base64 {
			part, err = writer.base64(part)
		} else {
			part, err = writer.text(part)
		}
		if err == errGone && !writer.sent && try < maxTries { // say it anew, with what is kept now
			writer.out = writer.out[:len(out)]
			continue
		}
		if err != nil {
			return nil, err
		}
		break
	}
	out = append(writer.out, '"')
	truncated := part.tail - part.head
	out = strconv.AppendInt(append(out, `,"`+name+`_truncated":`...), truncated, 10)
	if truncated > 0 {
		out = strconv.AppendInt(append(out, `,"`+name+`_head_bytes":`...), part.head, 10)
	}
	return out, nil
}

type textWriter struct {
	w     io.Writer
	out   []byte
	sent  bool // some of out has left
	spool *spool.Spool
}

var errGone = errors.New("the output was given up while it was sent")

// head sends the beginning. When the output is given up meanwhile for the common bound, what was sent is all there is:
// the counts, which come behind it, say so.
func (t *textWriter) head(part span, f func(p []byte, last bool) (rest int)) (span, error) {
	reached, err := t.each(0, part.head, f)
	if err == errGone {
		return span{head: reached, tail: part.end, end: part.end}, nil
	}
	return part, err
}

// each calls f with the bytes of [from, to) in order, and says how far it came.
func (t *textWriter) each(from, to int64, f func(p []byte, last bool) (rest int)) (reached int64, err error) {
	if from >= to {
		return to, nil
	}
	buffer := make([]byte, min(chunkBytes, to-from))
	carried := 0
	for from < to {
		n, next, err := t.spool.ReadAt(buffer[carried:min(int64(len(buffer)), int64(carried)+to-from)], from)
		if err != nil {
			return from, err
		}
		if n == 0 {
			return from - int64(carried), errGone
		}
		from = next
		filled := buffer[:carried+n]
		carried = f(filled, from >= to)
		copy(buffer, filled[len(filled)-carried:])
		if len(buffer) < chunkBytes && from < to {
			grown := make([]byte, chunkBytes)
			copy(grown, buffer[:carried])
			buffer = grown
		}
		if len(t.out) >= chunkBytes {
			if _, err := t.w.Write(t.out); err != nil {
				return from, err
			}
			t.out, t.sent = t.out[:0], true
		}
	}
	return to, nil
}

func (t *textWriter) text(part span) (span, error) {
	add := func(p []byte, last bool) (rest int) {
		t.out, rest = AppendJSONText(t.out, p, last)
		return rest
	}
	if part.head < part.tail { // cut between characters, not inside them
		edge := make([]byte, min(4, part.head))
		if n, _, err := t.spool.ReadAt(edge, part.head-int64(len(edge))); err == nil && n == len(edge) {
			part.head -= int64(len(edge) - wholeHead(edge))
		}
		edge = make([]byte, min(4, part.end-part.tail))
		if n, _, err := t.spool.ReadAt(edge, part.tail); err == nil && n == len(edge) {
			part.tail += int64(wholeTail(edge))
		}
	}
	part, err := t.head(part, add)
	if err == nil {
		_, err = t.each(part.tail, part.end, add)
	}
	return part, err
}

func (t *textWriter) base64(part span) (span, error) {
	encoder := base64.NewEncoder(base64.StdEncoding, appender{t})
	add := func(p []byte, _ bool) int { _, _ = encoder.Write(p); return 0 }
	part, err := t.head(part, add)
	if err == nil {
		_, err = t.each(part.tail, part.end, add)
	}
	if err != nil {
		return part, err
	}
	return part, encoder.Close()
}

type appender struct{ t *textWriter }

func (a appender) Write(p []byte) (int, error) {
	a.t.out = append(a.t.out, p...)
	return len(p), nil
}

// maxShownCommand bytes of a command are shown in a list.
const maxShownCommand = 1024

// Summary is an exec in a list: what ran and how it stands, without output.
func Summary(e *execs.Exec) json.RawMessage {
	out := AppendResultFields([]byte{'{'}, e)
	if failure := failureOf(e); failure != nil {
		raw, _ := json.Marshal(failure)
		out = append(append(out, `,"failure":`...), raw...)
	}
	return append(appendAsked(out, e), '}')
}

// appendAsked appends when an exec was accepted and, in short, what is to run.
func appendAsked(out []byte, e *execs.Exec) []byte {
	out = appendTime(append(out, `,"created_at":`...), e.Created)
	text := func(name, value string) {
		out = append(out, `,"`+name+`":"`...)
		out, _ = AppendJSONText(out, []byte(value[:min(len(value), maxShownCommand)]), true)
		out = append(out, '"')
	}
	if e.Spec.Argv == nil {
		text("command", e.Spec.Command)
	} else {
		raw, _ := json.Marshal(e.Spec.Argv)
		if !e.Spec.Cut && len(raw) <= maxShownCommand {
			out = append(append(out, `,"argv":`...), raw...)
		} else {
			text("command", e.Spec.Argv[0]+" …")
		}
	}
	if e.Spec.Cwd != "" {
		text("cwd", e.Spec.Cwd)
	}
	if e.Spec.User != "" {
		text("user", e.Spec.User)
	}
	return out
}

func failureOf(e *execs.Exec) *problem.Problem {
	if !e.Ended() {
		return nil
	}
	if _, err := e.Outcome(); err != nil {
		return Failure(e, err)
	}
	return nil
}

// Failure is the problem that tells why an exec never ran.
func Failure(e *execs.Exec, err error) *problem.Problem {
	var start *proc.StartError
	if !errors.As(err, &start) {
		p := *problem.Of(err)
		members := map[string]any{"id": e.ID}
		for name, value := range p.Members {
			members[name] = value
		}
		p.Members = members
		return &p
	}
	p := &problem.Problem{Slug: "exec-start-failed", Title: "The command could not be started", Status: 422, Detail: start.Detail}
	if start.Reason == proc.Resource {
		p.Cause, p.Retryable = problem.Task, true
	}
	p.With("reason", string(start.Reason)).With("id", e.ID)
	if start.Errno != 0 {
		p.With("errno", errnoName(start.Errno))
	}
	return p
}
