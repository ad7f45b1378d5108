// Package execs runs commands: it starts them, keeps their output, enforces their deadlines, and remembers how
// they ended for as long as its bounds allow.
//
// An exec has one end, told once: what the command itself wrote before it ended belongs to it, and what its
// leftovers write later never delays, changes or blocks anything.
package execs

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"
)

// StdinMode is where a command's standard input comes from.
type StdinMode byte

// The modes: at its end from the start, given whole, or streamed by a socket.
const (
	StdinNone StdinMode = iota
	StdinData
	StdinStream
)

// Size is a terminal's.
type Size struct{ Rows, Cols uint16 }

// Spec is a checked request to run a command.
type Spec struct {
	ID          string
	Command     string   // shell text, or
	Argv        []string // a program and its arguments
	Cwd         string
	Env         map[string]string
	StdinMode   StdinMode
	Stdin       []byte
	Timeout     time.Duration // 0: none
	Grace       time.Duration // between TERM and KILL
	User        string
	Session     string
	Shell       string
	MergeStderr bool
	PTY         *Size
	Cut         bool // of Argv only the first is kept

	// How the answer looks; two requests that differ only here ask for the same exec.
	Background bool
	Base64     bool
	MaxOutput  int64
}

// Bounds of what a record keeps of its request: a list shows a KiB of a command, and a path is no longer than 4 KiB.
const (
	keptText = 1 << 10
	keptPath = 4 << 10
)

// Record returns what is worth keeping of the request when its command has been started: thousands of records stay,
// and a request may have 16 MiB.
func (s *Spec) Record() *Spec {
	r := *s
	r.Env, r.Stdin = nil, nil
	clip := func(text string, most int) string { return strings.Clone(text[:min(len(text), most)]) }
	r.Command, r.Cwd = clip(s.Command, keptText), clip(s.Cwd, keptPath)
	r.User, r.Shell, r.Session, r.ID = clip(s.User, keptText), "", strings.Clone(s.Session), strings.Clone(s.ID)
	size := 0
	for _, argument := range s.Argv {
		size += len(argument) + len(`"",`)
	}
	if size > keptText { // more than a list shows
		r.Argv, r.Cut = []string{clip(s.Argv[0], keptText)}, true
	}
	return &r
}

// Bounds of a request, as PROTOCOL.md states them.
const (
	DefaultGrace     = 2 * time.Second
	MaxGrace         = time.Minute
	MaxTimeout       = 7 * 24 * time.Hour
	DefaultMaxOutput = 8 << 20
	MaxMaxOutput     = 64 << 20
)

// Fingerprint tells whether a repeated id asks for the same command.
func (s *Spec) Fingerprint() [32]byte {
	hash := sha256.New()
	text := func(values ...string) {
		for _, value := range values {
			var length [8]byte
			binary.BigEndian.PutUint64(length[:], uint64(len(value)))
			hash.Write(length[:])
			hash.Write([]byte(value))
		}
	}
	number := func(values ...int64) {
		for _, value := range values {
			var raw [8]byte
			binary.BigEndian.PutUint64(raw[:], uint64(value))
			hash.Write(raw[:])
		}
	}
	text(s.Command, s.Cwd, s.User, s.Session, s.Shell, string(s.Stdin))
	number(int64(len(s.Argv)), int64(s.StdinMode), int64(s.Timeout), int64(s.Grace), int64(len(s.Env)))
	text(s.Argv...)
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		text(key, s.Env[key])
	}
	flags := int64(0)
	if s.MergeStderr {
		flags |= 1
	}
	if s.PTY != nil {
		flags |= 2
	}
	number(flags)
	return [32]byte(hash.Sum(nil))
}
