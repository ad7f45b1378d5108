// Package server is the daemon's HTTP surface: who may call, and which call is which.
//
// Every path but /health needs the token, also paths that do not exist: an answer must not tell a stranger which do.
package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"sandman.dev/daemon/internal/config"
	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/intake"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/proc"
	"sandman.dev/daemon/internal/session"
	"sandman.dev/daemon/internal/wire"
)

// Server answers the daemon's calls.
type Server struct {
	Execs    *execs.Registry
	Sessions *session.Sessions
	Files    http.Handler
	Version  string

	config *config.Config
	token  [32]byte
	intake *intake.Budget
}

// intakeBytes may be held by all requests and messages that are still on their way, beside their first 64 KiB each.
const intakeBytes = 64 << 20

// New returns the handler for a checked configuration.
func New(c *config.Config, registry *execs.Registry, sessions *session.Sessions, files http.Handler, version string) *Server {
	s := &Server{Execs: registry, Sessions: sessions, Files: files, Version: version, config: c, intake: intake.New(intakeBytes)}
	sum, _ := hex.DecodeString(c.TokenSHA256)
	copy(s.token[:], sum)
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		reply(w, http.StatusOK, map[string]any{"ok": true, "version": s.Version, "self": execs.Self})
		return
	}
	if !s.authorized(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		problem.Write(w, &problem.Problem{Slug: "unauthorized", Title: "The token is missing or wrong", Status: http.StatusUnauthorized})
		return
	}
	if err := s.route(w, r); err != nil {
		problem.Write(w, err)
	}
}

// authorized compares hashes in constant time, so that neither timing nor memory gives the token away.
func (s *Server) authorized(r *http.Request) bool {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return false
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.Path
	switch {
	case path == "/v1/exec":
		return methods(r, func() error { return s.exec(w, r) }, "POST")
	case path == "/v1/execs":
		return methods(r, func() error { return s.list(w, r) }, "GET")
	case path == "/v1/connect":
		return methods(r, func() error { return s.connect(w, r) }, "GET")
	case path == "/v1/info":
		return methods(r, func() error { s.info(w); return nil }, "GET")
	case path == "/v1/sessions":
		return methods(r, func() error { return s.sessions(w) }, "GET")
	case strings.HasPrefix(path, "/v1/sessions/"):
		return methods(r, func() error { return s.endSession(w, strings.TrimPrefix(path, "/v1/sessions/")) }, "DELETE")
	case path == "/v1/files", path == "/v1/archive", strings.HasPrefix(path, "/v1/files/"):
		s.Files.ServeHTTP(w, r)
		return nil
	case strings.HasPrefix(path, "/v1/execs/"):
		id, call, _ := strings.Cut(strings.TrimPrefix(path, "/v1/execs/"), "/")
		e, err := s.Execs.Get(id)
		if err != nil {
			return err
		}
		switch call {
		case "":
			return methods(r, func() error { return s.show(w, r, e) }, "GET")
		case "output":
			return methods(r, func() error { return s.output(w, r, e) }, "GET")
		case "signal":
			return methods(r, func() error { return s.signal(w, r, e) }, "POST")
		}
	}
	return &problem.Problem{Slug: "not-found", Title: "No such call", Status: http.StatusNotFound}
}

func methods(r *http.Request, handle func() error, allowed ...string) error {
	for _, method := range allowed {
		if r.Method == method || (r.Method == http.MethodHead && method == http.MethodGet) {
			return handle()
		}
	}
	return &problem.Problem{Slug: "method-not-allowed", Title: "The method is not allowed here", Status: http.StatusMethodNotAllowed,
		Detail: "allowed: " + strings.Join(allowed, ", ")}
}

// bodyTimeout bounds the arrival of a whole JSON request: one that is never finished holds memory and a connection.
const bodyTimeout = 2 * time.Minute

// body reads a JSON request of at most limit bytes.
func (s *Server) body(w http.ResponseWriter, r *http.Request, limit int64) (wire.Object, error) {
	tooLarge := &problem.Problem{Slug: "request-too-large", Title: "The request is too large", Status: http.StatusRequestEntityTooLarge,
		Detail: "the bound is " + strconv.FormatInt(limit, 10) + " bytes"}
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	share := s.intake.Share()
	defer share.Release()
	raw, err := share.ReadAll(r.Body, r.ContentLength, limit)
	_ = control.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, intake.ErrFull):
		return nil, &problem.Problem{Slug: "resource-exhausted", Title: "Too many large requests are on their way",
			Status: http.StatusServiceUnavailable, Retryable: true, Detail: "the bound of all is " + strconv.Itoa(intakeBytes) + " bytes"}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &problem.Problem{Slug: "incomplete-request", Title: "The body ended early", Status: http.StatusBadRequest}
	case err != nil:
		return nil, &problem.Problem{Slug: "malformed", Title: "The body could not be read", Status: http.StatusBadRequest}
	case int64(len(raw)) > limit:
		return nil, tooLarge
	}
	return wire.ParseObject(raw)
}

func reply(w http.ResponseWriter, status int, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		problem.Write(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller may be gone
}

func (s *Server) info(w http.ResponseWriter) {
	running, kept := s.Execs.Counts()
	tree := "tag"
	if !proc.Tagging() {
		tree = "group"
	}
	_, oom := proc.OOMKills()
	reply(w, http.StatusOK, map[string]any{
		"version": s.Version, "sandbox": s.config.Sandbox, "tree": tree, "oom_visible": oom,
		"spool": map[string]any{"dir": s.config.SpoolDir != "", "bytes": s.config.SpoolBytes},
		"execs": map[string]any{"running": running, "kept": kept, "kept_max": s.config.MaxExecs, "running_max": s.config.MaxRunning},
	})
}
