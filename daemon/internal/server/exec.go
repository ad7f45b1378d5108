package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/wire"
)

// exec runs a command to its end, or starts it in the background. A caller that goes away does not stop it: the same
// id asks again.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	object, err := s.body(w, r, wire.MaxRequestBytes)
	if err != nil {
		return err
	}
	spec, err := wire.DecodeExec(object, false, nil)
	if err != nil {
		return err
	}
	e, _, err := s.Execs.Start(spec)
	if err != nil {
		return err
	}
	view := wire.View{Base64: spec.Base64, Limit: spec.MaxOutput, Output: true}
	if spec.Background {
		if e.Ended() { // at least its start is known: a program that does not exist is told at once
			if _, failure := e.Outcome(); failure != nil {
				return wire.Failure(e, failure)
			}
		}
		return writeResult(w, http.StatusAccepted, e, wire.View{})
	}
	if !wait(r.Context(), e, 0) {
		cut()
	}
	return writeEnded(w, e, view)
}

// cut ends the connection without an answer: the caller went away, or only stopped to send; an empty answer would tell
// the latter of an end that has not come.
func cut() { panic(http.ErrAbortHandler) }

// quick is how long a command may take before it is worth watching whether the caller is still there.
const quick = 100 * time.Millisecond

// wait waits for the exec's end; false: the caller went away. limit 0: no limit.
func wait(ctx context.Context, e *execs.Exec, limit time.Duration) bool {
	select {
	case <-e.Done():
		return true
	default:
	}
	first := time.NewTimer(quick)
	defer first.Stop()
	select {
	case <-e.Done():
		return true
	case <-first.C:
	}
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(max(limit-quick, 0))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-e.Done():
	case <-over:
	case <-ctx.Done():
		return false
	}
	return true
}

func writeEnded(w http.ResponseWriter, e *execs.Exec, view wire.View) error {
	if _, failure := e.Outcome(); failure != nil {
		return wire.Failure(e, failure)
	}
	return writeResult(w, http.StatusOK, e, view)
}

func writeResult(w http.ResponseWriter, status int, e *execs.Exec, view wire.View) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := wire.WriteResult(w, e, view); err != nil {
		panic(http.ErrAbortHandler) // half an object is out: a cut connection is the honest end
	}
	return nil
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, err := number(query, "limit", 100, 1, 1000)
	if err != nil {
		return err
	}
	after, err := number(query, "cursor", 0, 0, 1<<60)
	if err != nil {
		return err
	}
	state := query.Get("state")
	if state != "" && state != "running" && state != "exited" {
		return problem.Invalid("state", `must be "running" or "exited"`)
	}
	items := []json.RawMessage{}
	var next any
	for _, e := range s.Execs.List() {
		if e.Sequence <= after || (state != "" && (state == "exited") != e.Ended()) {
			continue
		}
		if int64(len(items)) == limit {
			break
		}
		items = append(items, wire.Summary(e))
		if int64(len(items)) == limit {
			next = strconv.FormatInt(e.Sequence, 10)
		}
	}
	reply(w, http.StatusOK, map[string]any{"items": items, "next": next})
	return nil
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, e *execs.Exec) error {
	query := r.URL.Query()
	view := wire.View{Base64: e.Spec.Base64, Limit: e.Spec.MaxOutput, Output: true, Asked: true}
	switch query.Get("encoding") {
	case "":
	case "utf-8":
		view.Base64 = false
	case "base64":
		view.Base64 = true
	default:
		return problem.Invalid("encoding", `must be "utf-8" or "base64"`)
	}
	limit, err := number(query, "max_output_bytes", view.Limit, 0, execs.MaxMaxOutput)
	if err != nil {
		return err
	}
	view.Limit = limit
	if text := query.Get("wait"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds >= 0 && seconds <= 3600) {
			return problem.Invalid("wait", "must be a number of seconds from 0 to 3600")
		}
		if d := time.Duration(seconds * float64(time.Second)); d > 0 && !wait(r.Context(), e, d) {
			cut()
		}
	}
	if e.Ended() {
		return writeEnded(w, e, view)
	}
	return writeResult(w, http.StatusOK, e, view)
}

func (s *Server) signal(w http.ResponseWriter, r *http.Request, e *execs.Exec) error {
	object, err := s.body(w, r, 4096)
	if err != nil {
		return err
	}
	for name := range object {
		if name != "signal" && name != "scope" {
			return problem.Invalid(name, "unknown field")
		}
	}
	if object["signal"] == nil {
		object["signal"] = json.RawMessage(`"TERM"`)
	}
	if object["scope"] == nil {
		object["scope"] = json.RawMessage(`null`)
	}
	sig, err := wire.Signal(object["signal"])
	if err != nil {
		return err
	}
	scope, err := wire.DecodeScope(object["scope"])
	if err != nil {
		return err
	}
	count := e.Signal(sig, scope)
	state := "running"
	if e.Ended() {
		state = "exited"
	}
	reply(w, http.StatusOK, map[string]any{"id": e.ID, "signalled": count, "state": state})
	return nil
}

func number(query url.Values, name string, fallback, least, most int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, problem.Invalid(name, "must be a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}
