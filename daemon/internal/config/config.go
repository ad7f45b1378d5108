// Package config reads what one daemon is told at its start, and checks it before anything else runs.
//
// The configuration names no secret: of the token only its SHA-256 is known here, so that whoever reads the
// daemon's memory, environment or files cannot talk to it.
package config

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// EnvName is the variable that may hold the configuration; it never reaches a command.
const EnvName = "SANDMAND_CONFIG"

// Defaults: what a field means when it is left out.
const (
	// DefaultSpoolBytes is kept of each output stream on disk; half from its beginning, half from its end.
	DefaultSpoolBytes = 64 << 20
	// DefaultSpoolTotalBytes is kept of all output in files; the oldest ended execs give theirs up first.
	DefaultSpoolTotalBytes = 1 << 30
	// DefaultMemoryBytes is kept of all output in memory: a sandbox of 128 MiB must still have room to work.
	DefaultMemoryBytes = 32 << 20
	// DefaultMaxExecs is how many ended execs stay readable: about 3 KiB each beside their output.
	DefaultMaxExecs = 4096
	// DefaultMaxRunning bounds live execs: each holds up to five descriptors of the daemon.
	DefaultMaxRunning = 2048
	// DefaultMaxConnections leaves room for 1,000 idle clients and as many at work.
	DefaultMaxConnections = 4096
)

// Config is one daemon's settings. Bytes and seconds are in the names; zero means the default.
type Config struct {
	Listen          string            `json:"listen"`           // "fd:3", "unix:/path" or "tcp:host:port"
	TokenSHA256     string            `json:"token_sha256"`     // hex
	Sandbox         string            `json:"sandbox"`          // the sandbox's id, for answers and logs
	DeadlineSeconds *float64          `json:"deadline_seconds"` // the daemon ends itself then; null: never
	Env             map[string]string `json:"env"`              // the base environment of every command
	InheritEnv      bool              `json:"inherit_env"`      // base it on the daemon's own environment (the image's)
	Workdir         string            `json:"workdir"`          // default "/"
	User            string            `json:"user"`             // default: the daemon's own
	Shell           string            `json:"shell"`            // default: bash, else sh
	SpoolDir        string            `json:"spool_dir"`        // output past memory goes to files here; empty: memory only
	SpoolBytes      int64             `json:"spool_bytes"`      // kept of one stream
	SpoolTotalBytes int64             `json:"spool_total_bytes"`
	MemoryBytes     int64             `json:"memory_bytes"`
	MaxExecs        int               `json:"max_execs"`
	MaxRunning      int               `json:"max_running"`
	MaxConnections  int               `json:"max_connections"`
	MaxProcesses    int               `json:"max_processes"` // of the sandbox, that a command may fork; 0: not bounded here
}

// Source says where the configuration comes from; exactly one is used, in this order.
type Source struct {
	FD   int    // an inherited descriptor (a memfd, a pipe); -1: none
	File string // a path
}

// Load reads, fills in and checks the configuration.
func Load(source Source) (*Config, error) {
	var raw []byte
	var err error
	switch {
	case source.FD >= 0:
		file := os.NewFile(uintptr(source.FD), "config")
		raw, err = io.ReadAll(io.LimitReader(file, 4<<20))
		file.Close()
	case source.File != "":
		raw, err = os.ReadFile(source.File)
	default:
		text := os.Getenv(EnvName)
		if text == "" {
			return nil, errors.New("no configuration: give --config-fd, --config or " + EnvName)
		}
		raw = []byte(text)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return Parse(raw)
}

// Parse decodes and checks a configuration.
func Parse(raw []byte) (*Config, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var c Config
	if err := decoder.Decode(&c); err != nil {
		return nil, fmt.Errorf("the configuration is not valid: %w", err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("the configuration is not valid: %w", err)
	}
	c.fill()
	return &c, nil
}

func (c *Config) check() error {
	if sum, err := hex.DecodeString(c.TokenSHA256); err != nil || len(sum) != 32 {
		return errors.New("token_sha256 must be 64 hex digits")
	}
	kind, rest, _ := strings.Cut(c.Listen, ":")
	switch kind {
	case "fd":
		if n, err := strconv.Atoi(rest); err != nil || n < 0 {
			return errors.New(`listen: "fd:" needs a descriptor number`)
		}
	case "unix", "tcp":
		if rest == "" {
			return errors.New("listen: an address is missing")
		}
	default:
		return errors.New(`listen must be "fd:N", "unix:/path" or "tcp:host:port"`)
	}
	if c.DeadlineSeconds != nil && !(*c.DeadlineSeconds > 0 && *c.DeadlineSeconds < 1e9) {
		return errors.New("deadline_seconds must be positive")
	}
	if c.Workdir != "" && !strings.HasPrefix(c.Workdir, "/") {
		return errors.New("workdir must be absolute")
	}
	for key, value := range c.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(value, "\x00") {
			return errors.New("env holds a name or value that no process can be given")
		}
	}
	if c.SpoolBytes < 0 || c.SpoolTotalBytes < 0 || c.MemoryBytes < 0 || c.MaxExecs < 0 || c.MaxRunning < 0 || c.MaxConnections < 0 || c.MaxProcesses < 0 {
		return errors.New("a bound is negative")
	}
	return nil
}

func (c *Config) fill() {
	fill(&c.SpoolBytes, DefaultSpoolBytes)
	fill(&c.SpoolTotalBytes, DefaultSpoolTotalBytes)
	fill(&c.MemoryBytes, DefaultMemoryBytes)
	fill(&c.MaxExecs, DefaultMaxExecs)
	fill(&c.MaxRunning, DefaultMaxRunning)
	fill(&c.MaxConnections, DefaultMaxConnections)
	if c.Workdir == "" {
		c.Workdir = "/"
	}
}

func fill[T int | int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Deadline is how long the daemon may live; zero means for ever.
func (c *Config) Deadline() time.Duration {
	if c.DeadlineSeconds == nil {
		return 0
	}
	return time.Duration(*c.DeadlineSeconds * float64(time.Second))
}
