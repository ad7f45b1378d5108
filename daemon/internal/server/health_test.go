package server

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"testing"

	"sandman.dev/daemon/internal/config"
)

func TestHealthSaysWhereTheProgramLies(t *testing.T) {
	answer := httptest.NewRecorder()
	New(&config.Config{}, nil, nil, nil, "9").ServeHTTP(answer, httptest.NewRequest("GET", "/health", nil))
	var health struct {
		OK            bool
		Version, Self string
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &health); err != nil {
		t.Fatal(err)
	}
	if own, _ := os.Executable(); !health.OK || health.Version != "9" || health.Self != own {
		t.Fatalf("health is %s", answer.Body)
	}
}
