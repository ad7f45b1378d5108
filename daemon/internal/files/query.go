package files

// Query parameters, strictly: net/url drops pairs that it cannot read, and a dropped parameter is
// another request than the one that was meant.

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sandman.dev/daemon/internal/problem"
)

type query map[string]string

// parseQuery reads a raw query as HTML forms and every HTTP library write it: pairs split at "&" only,
// "+" is a space, "%XX" a byte. Values are bytes, not text. Unknown and doubled names are refused.
func parseQuery(raw string, known ...string) (query, error) {
	parsed := query{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return nil, problem.Invalid("query", "malformed percent-encoding in a parameter's name")
		}
		if !slices.Contains(known, name) {
			return nil, problem.Invalid(strings.ToValidUTF8(name, "\uFFFD"), "no such parameter; known here: "+strings.Join(known, ", "))
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return nil, problem.Invalid(name, "malformed percent-encoding")
		}
		if _, twice := parsed[name]; twice {
			return nil, problem.Invalid(name, "given more than once")
		}
		parsed[name] = value
	}
	return parsed, nil
}

func (q query) path(field string) (string, error) {
	return q[field], checkPath(field, q[field])
}

func (q query) flag(field string, otherwise bool) (bool, error) {
	value, given := q[field]
	switch {
	case !given:
		return otherwise, nil
	case value == "true" || value == "1":
		return true, nil
	case value == "false" || value == "0":
		return false, nil
	}
	return false, problem.Invalid(field, "must be true or false")
}

func (q query) number(field string, otherwise, least, most int) (int, error) {
	value, given := q[field]
	if !given {
		return otherwise, nil
	}
	number, err := strconv.Atoi(value)
	if err != nil || number < least || number > most {
		return 0, problem.Invalid(field, "must be a whole number from "+strconv.Itoa(least)+" to "+strconv.Itoa(most))
	}
	return number, nil
}

// mode is the permission bits asked for, and whether any were.
func (q query) mode(field string) (uint32, bool, error) {
	value, given := q[field]
	if !given {
		return 0, false, nil
	}
	mode, err := parseMode(field, value)
	return mode, true, err
}

// parseMode reads permission bits in octal, the only form: "755" and "0755" are the same, "0o755" and the
// decimal 493 are refused rather than guessed at.
func parseMode(field, text string) (uint32, error) {
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || len(text) > 5 || mode > 0o7777 {
		return 0, problem.Invalid(field, "must be octal permission bits such as 0755 or 755")
	}
	return uint32(mode), nil
}
