package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
)

func isNull(value json.RawMessage) bool { return bytes.Equal(value, []byte("null")) }

// anyText decodes a string that may hold NUL.
func anyText(field string, value json.RawMessage) (string, error) {
	var text string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
		return "", problem.Invalid(field, "must be a string")
	}
	if loneSurrogate(value) {
		return "", problem.Invalid(field, "holds half a surrogate pair, which is no text")
	}
	return text, nil
}

// Text decodes a string that will be an argument, a name or a path.
func Text(field string, value json.RawMessage) (string, error) {
	text, err := anyText(field, value)
	if err == nil && strings.IndexByte(text, 0) >= 0 {
		return "", problem.Invalid(field, "holds a NUL byte")
	}
	return text, err
}

func optionalText(field string, value json.RawMessage) (string, error) {
	if isNull(value) {
		return "", nil
	}
	return Text(field, value)
}

func texts(field string, value json.RawMessage) ([]string, error) {
	var raw []json.RawMessage
	if json.Unmarshal(value, &raw) != nil {
		return nil, problem.Invalid(field, "must be a list of strings")
	}
	list := make([]string, len(raw))
	for i, item := range raw {
		text, err := Text(field, item)
		if err != nil {
			return nil, err
		}
		list[i] = text
	}
	return list, nil
}

func bytesOf(field string, value json.RawMessage) ([]byte, error) {
	text, err := anyText(field, value)
	if err != nil {
		return nil, err
	}
	raw, decodeErr := base64.StdEncoding.DecodeString(text)
	if decodeErr != nil {
		return nil, problem.Invalid(field, "is not base64")
	}
	return raw, nil
}

func flag(field string, value json.RawMessage) (bool, error) {
	var set bool
	if json.Unmarshal(value, &set) != nil {
		return false, problem.Invalid(field, "must be true or false")
	}
	return set, nil
}

// Integer decodes a whole number within bounds.
func Integer(field string, value json.RawMessage, least, most int64) (int64, error) {
	var n int64
	if isNull(value) || json.Unmarshal(value, &n) != nil || n < least || n > most {
		return 0, problem.Invalid(field, fmt.Sprintf("must be a whole number from %d to %d", least, most))
	}
	return n, nil
}

// Size decodes a terminal's size.
func Size(field string, value json.RawMessage) (*execs.Size, error) {
	object, err := ParseObject(value)
	if err != nil {
		return nil, problem.Invalid(field, "must be an object with rows and cols")
	}
	size := &execs.Size{Rows: 24, Cols: 80}
	for name, item := range object {
		target := &size.Rows
		switch name {
		case "rows":
		case "cols":
			target = &size.Cols
		default:
			return nil, problem.Invalid(field+"."+clip(name), "unknown field")
		}
		n, err := Integer(field+"."+name, item, 1, 4096)
		if err != nil {
			return nil, err
		}
		*target = uint16(n)
	}
	return size, nil
}

// CheckName checks an id that a caller chose.
func CheckName(field, name string) error {
	if !isName(name) {
		return problem.Invalid(field, "must be 1 to 128 of A-Z a-z 0-9 . _ : - and begin with a letter or digit")
	}
	return nil
}

// isName is spelled out because a compiled pattern of this kind takes 120 KB of every idle daemon.
func isName(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && strings.IndexByte("._:-", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// loneSurrogate finds \ud800-\udfff escapes without their other half, which decoding would silently replace.
func loneSurrogate(raw []byte) bool {
	for i := 0; i+5 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] != 'u' {
			i++
			continue
		}
		unit := hex4(raw[i+2 : i+6])
		i += 5
		switch {
		case unit < 0xd800 || unit > 0xdfff:
		case unit < 0xdc00 && i+6 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' && hex4(raw[i+3:i+7])&^0x3ff == 0xdc00:
			i += 6
		default:
			return true
		}
	}
	return false
}

func hex4(digits []byte) (n int) {
	for _, c := range digits {
		n <<= 4
		switch {
		case c >= '0' && c <= '9':
			n |= int(c - '0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n |= int(c|0x20-'a') + 10
		}
	}
	return n
}

var signals = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
	"USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20,
	"TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31,
}

// Signal decodes a signal by name ("TERM", "SIGTERM") or number.
func Signal(value json.RawMessage) (syscall.Signal, error) {
	var n int
	if json.Unmarshal(value, &n) == nil && !isNull(value) {
		if n >= 1 && n <= 64 {
			return syscall.Signal(n), nil
		}
		return 0, problem.Invalid("signal", "must be a name or a number from 1 to 64")
	}
	text, err := Text("signal", value)
	if err != nil {
		return 0, err
	}
	if sig, ok := signals[strings.TrimPrefix(text, "SIG")]; ok {
		return sig, nil
	}
	return 0, problem.Invalid("signal", "unknown signal")
}

// DecodeScope decodes how far a signal reaches; the default is the whole tree.
func DecodeScope(value json.RawMessage) (execs.Scope, error) {
	text, err := optionalText("scope", value)
	if err != nil {
		return "", err
	}
	switch scope := execs.Scope(text); scope {
	case "":
		return execs.ScopeTree, nil
	case execs.ScopeProcess, execs.ScopeGroup, execs.ScopeTree:
		return scope, nil
	}
	return "", problem.Invalid("scope", `must be "process", "group" or "tree"`)
}
