package server

import (
	"net/http"

	"sandman.dev/daemon/internal/problem"
)

func (s *Server) sessions(w http.ResponseWriter) error {
	reply(w, http.StatusOK, map[string]any{"items": s.Sessions.List(), "next": nil})
	return nil
}

func (s *Server) endSession(w http.ResponseWriter, name string) error {
	if !s.Sessions.Delete(name) {
		return &problem.Problem{Slug: "session-not-found", Title: "No such session", Status: http.StatusNotFound}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
