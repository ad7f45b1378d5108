package config

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	good, err := Parse([]byte(`{"listen":"fd:3","token_sha256":"` + sum + `","deadline_seconds":1.5,"user":null,"workdir":null}`))
	if err != nil || good.Deadline() != 1500*time.Millisecond || good.Workdir != "/" || good.MaxExecs != DefaultMaxExecs || good.SpoolBytes != DefaultSpoolBytes {
		t.Fatalf("%+v %v", good, err)
	}
	for _, raw := range []string{
		``, `[]`, `{}`, `{"listen":"fd:3"}`, `{"listen":"fd:x","token_sha256":"` + sum + `"}`, `{"listen":"udp:1","token_sha256":"` + sum + `"}`,
		`{"listen":"unix:","token_sha256":"` + sum + `"}`, `{"listen":"fd:3","token_sha256":"` + sum + `","what":1}`,
		`{"listen":"fd:3","token_sha256":"` + sum + `","deadline_seconds":0}`, `{"listen":"fd:3","token_sha256":"` + sum + `","workdir":"x"}`,
		`{"listen":"fd:3","token_sha256":"` + sum + `","env":{"A=":"x"}}`, `{"listen":"fd:3","token_sha256":"` + sum + `","max_execs":-1}`,
	} {
		if c, err := Parse([]byte(raw)); err == nil {
			t.Errorf("%s: %+v", raw, c)
		}
	}
}
