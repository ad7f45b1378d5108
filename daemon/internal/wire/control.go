package wire

import (
	"encoding/json"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
)

// Bounds of a channel's flow control.
const (
	DefaultCredit = 1 << 20
	MaxCredit     = 1 << 40
)

// Control is one JSON message of a client, checked. Which members count depends on Op.
type Control struct {
	Op           string
	Channel      uint32
	Spec         *execs.Spec     // start
	ID           string          // attach
	StdoutOffset int64           // attach
	StderrOffset int64           // attach
	Credit       int64           // start, attach: the window; credit: the grant
	Follow       bool            // start
	Drop         bool            // start, attach: overflow "drop"
	Signal       json.RawMessage // signal
	Scope        json.RawMessage // signal
	Size         *execs.Size     // resize
}

// members that each op may have beside op and ch; start has an exec request's too.
var controlMembers = map[string][]string{
	"start":  {"follow", "credit", "overflow"},
	"attach": {"id", "stdout_offset", "stderr_offset", "credit", "overflow"},
	"eof":    {},
	"signal": {"signal", "scope"},
	"resize": {"rows", "cols"},
	"credit": {"bytes"},
	"detach": {},
	"ping":   {},
}

// DecodeControl checks one text message. With an error the returned message has the channel, where it had one.
func DecodeControl(raw []byte) (*Control, error) {
	object, err := ParseObject(raw)
	c := &Control{Credit: DefaultCredit, Follow: true, Scope: json.RawMessage("null")}
	if err != nil {
		return c, err
	}
	if c.Op, err = Text("op", object["op"]); err != nil {
		return c, err
	}
	members, known := controlMembers[c.Op]
	if !known {
		return c, problem.Invalid("op", "unknown operation")
	}
	delete(object, "op")
	if channel, present := object["ch"]; present || c.Op != "ping" {
		n, err := Integer("ch", channel, 0, 1<<32-1)
		if err != nil {
			return c, err
		}
		c.Channel = uint32(n)
		delete(object, "ch")
	}
	if c.Op == "resize" {
		raw, _ := json.Marshal(object)
		c.Size, err = Size("resize", raw)
		return c, err
	}
	own := func(name string, value json.RawMessage) (bool, error) {
		for _, member := range members {
			if member == name {
				return true, c.member(name, value)
			}
		}
		return false, nil
	}
	if c.Op == "start" {
		c.Spec, err = DecodeExec(object, true, own)
		return c, err
	}
	for name, value := range object {
		known, err := own(name, value)
		if err != nil {
			return c, err
		}
		if !known {
			return c, problem.Invalid(clip(name), "unknown field")
		}
	}
	if c.Op == "attach" && c.ID == "" {
		return c, problem.Invalid("id", "is missing")
	}
	if c.Op == "signal" && c.Signal == nil {
		return c, problem.Invalid("signal", "is missing")
	}
	return c, nil
}

func (c *Control) member(name string, value json.RawMessage) (err error) {
	switch name {
	case "id":
		c.ID, err = Text(name, value)
	case "stdout_offset":
		c.StdoutOffset, err = Integer(name, value, 0, 1<<62)
	case "stderr_offset":
		c.StderrOffset, err = Integer(name, value, 0, 1<<62)
	case "credit":
		c.Credit, err = Integer(name, value, 0, MaxCredit)
	case "bytes":
		c.Credit, err = Integer(name, value, 1, MaxCredit)
	case "follow":
		c.Follow, err = flag(name, value)
	case "overflow":
		var text string
		if text, err = Text(name, value); err == nil && text != "block" && text != "drop" {
			err = problem.Invalid(name, `must be "block" or "drop"`)
		}
		c.Drop = text == "drop"
	case "signal":
		c.Signal = value
	case "scope":
		c.Scope = value
	}
	return err
}
