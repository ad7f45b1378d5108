package files

// JSON request bodies. encoding/json repairs what is no text (broken UTF-8, lone surrogates) into U+FFFD,
// which for a file name means another file: such bodies are refused.

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"sandman.dev/daemon/internal/problem"
)

// maxJSONBytes holds two paths of 4 KiB with every byte escaped, and some.
const maxJSONBytes = 64 << 10

func readJSON(r *http.Request, into any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxJSONBytes+1))
	if err != nil {
		return &problem.Problem{Slug: "invalid-request", Title: "The body could not be read", Status: http.StatusBadRequest,
			Detail: err.Error(), Retryable: true}
	}
	if len(body) > maxJSONBytes {
		return &problem.Problem{Slug: "too-large", Title: "The body is too large", Status: http.StatusRequestEntityTooLarge}
	}
	if err := checkText(body); err != nil {
		return problem.Invalid("body", err.Error())
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		var wrongType *json.UnmarshalTypeError
		if errors.As(err, &wrongType) && wrongType.Field != "" {
			return problem.Invalid(wrongType.Field, "must be a "+wrongType.Type.String()+", not "+wrongType.Value)
		}
		return problem.Invalid("body", err.Error())
	}
	if _, err := decoder.Token(); err != io.EOF {
		return problem.Invalid("body", "more follows after the JSON object")
	}
	return nil
}

// checkText tells whether every string of a JSON text is real text.
func checkText(body []byte) error {
	if !utf8.Valid(body) {
		return errors.New("is no UTF-8; names that are none go into the members ending in _b64")
	}
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		unit, ok := escapedUnit(body[i:])
		if !ok {
			i++ // another escape: its second byte is no backslash of its own
			continue
		}
		i += 5
		if !utf16.IsSurrogate(unit) {
			continue
		}
		low, ok := escapedUnit(body[i+1:])
		if !ok || utf16.DecodeRune(unit, low) == utf8.RuneError {
			return errors.New("holds a lone surrogate, which is no text")
		}
		i += 6
	}
	return nil
}

func escapedUnit(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(unit), err == nil
}

// jsonPath picks the text or the base64 form of a path; exactly one must be given.
func jsonPath(field, text, b64 string) (string, error) {
	if b64 == "" {
		return text, checkPath(field, text)
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
