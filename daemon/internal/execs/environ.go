package execs

import (
	"maps"
	"os"
	"slices"
	"strings"

	"sandman.dev/daemon/internal/config"
	"sandman.dev/daemon/internal/proc"
)

// Environ is the base environment of every command: the configured one and, when asked, the image's, which a
// container runtime gives to the daemon. Nothing of the daemon's own is in it.
type Environ struct {
	base  []string
	index map[string]int
}

// NewEnviron builds the base once.
func NewEnviron(c *config.Config) *Environ {
	e := &Environ{index: map[string]int{}}
	if c.InheritEnv {
		for _, pair := range os.Environ() {
			key, value, _ := strings.Cut(pair, "=")
			if key != "" && !strings.HasPrefix(key, "SANDMAND_") {
				e.set(key, value)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		e.set(key, c.Env[key])
	}
	if _, ok := e.index["PATH"]; !ok {
		e.set("PATH", proc.DefaultPath)
	}
	return e
}

func (e *Environ) set(key, value string) {
	if at, ok := e.index[key]; ok {
		e.base[at] = key + "=" + value
		return
	}
	e.index[key] = len(e.base)
	e.base = append(e.base, key+"="+value)
}

// For is the environment of one command, and the PATH in it.
func (e *Environ) For(spec *Spec, who *proc.Identity) (env []string, path string) {
	env = make([]string, len(e.base), len(e.base)+len(spec.Env)+4)
	copy(env, e.base)
	for _, key := range slices.Sorted(maps.Keys(spec.Env)) { // the same request gets the same environment, in order too
		value := spec.Env[key]
		if at, ok := e.index[key]; ok {
			env[at] = key + "=" + value
		} else {
			env = append(env, key+"="+value)
		}
	}
	fill := func(key, value string, force bool) {
		if _, asked := spec.Env[key]; asked || value == "" {
			return
		}
		at, inBase := e.index[key]
		switch {
		case !inBase:
			env = append(env, key+"="+value)
		case force: // the base was meant for another user
			env[at] = key + "=" + value
		}
	}
	other := spec.User != ""
	fill("HOME", who.Home, other)
	fill("USER", who.Name, other)
	fill("LOGNAME", who.Name, other)
	if spec.PTY != nil {
		fill("TERM", "xterm-256color", false)
	}
	at := e.index["PATH"]
	return env, strings.TrimPrefix(env[at], "PATH=")
}
