package files

// JSON request bodies, decoded by the daemon's one strict reader: what is no text is refused, where
// encoding/json would repair it into U+FFFD, which for a file name means another file.

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/wire"
)

// maxJSONBytes holds two paths of 4 KiB with every byte escaped, and some.
const maxJSONBytes = 64 << 10

type members struct{ wire.Object }

// readJSON reads the request's object; members that are not known are refused.
func readJSON(r *http.Request, known ...string) (members, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxJSONBytes+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return members{}, &problem.Problem{Slug: "incomplete-request", Title: "The body ended early", Status: http.StatusBadRequest}
	case err != nil:
		return members{}, &problem.Problem{Slug: "malformed", Title: "The body could not be read", Status: http.StatusBadRequest}
	case len(body) > maxJSONBytes:
		return members{}, &problem.Problem{Slug: "request-too-large", Title: "The request is too large",
			Status: http.StatusRequestEntityTooLarge}
	}
	object, err := wire.ParseObject(body)
	if err != nil {
		return members{}, err
	}
	for name := range object {
		if !slices.Contains(known, name) {
			return members{}, problem.Invalid(strings.ToValidUTF8(name, "\uFFFD"), "unknown field; known here: "+strings.Join(known, ", "))
		}
	}
	return members{object}, nil
}

// text is a member that may be left out or null: then it is "".
// given tells an empty text from none.
func (m members) given(field string) bool {
	value, given := m.Object[field]
	return given && string(value) != "null"
}

func (m members) text(field string) (string, error) {
	if !m.given(field) {
		return "", nil
	}
	return wire.Text(field, m.Object[field])
}

func (m members) flag(field string, otherwise bool) (bool, error) {
	if !m.given(field) {
		return otherwise, nil
	}
	var set bool
	if json.Unmarshal(m.Object[field], &set) != nil {
		return false, problem.Invalid(field, "must be true or false")
	}
	return set, nil
}

// path is a member's text, or the bytes of its twin ending in _b64; exactly one must be given.
func (m members) path(field string) (string, error) {
	text, err := m.text(field)
	if err != nil {
		return "", err
	}
	b64, err := m.text(field + "_b64")
	if err != nil || b64 == "" {
		return text, errors.Join(err, checkPath(field, text))
	}
	if text != "" {
		return "", problem.Invalid(field, "give "+field+" or "+field+"_b64, not both")
	}
	path, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		return "", problem.Invalid(field+"_b64", "is no base64")
	}
	return string(path), checkPath(field+"_b64", string(path))
}
