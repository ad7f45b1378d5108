// Package problem is the one shape in which the daemon tells a caller what went wrong: RFC 9457
// application/problem+json with a stable type, and the members retryable and cause, by which a training
// job tells its own mistakes from failures of the machinery.
//
// A Problem is an error, so it travels up through ordinary returns and is written once, at the border.
package problem

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strconv"
)

// ContentType is what every problem is served as.
const ContentType = "application/problem+json"

// The three answers to "whose fault was it".
const (
	Caller = "caller" // the request asked for something that cannot be
	Task   = "task"   // what runs in the sandbox did it (its disk is full, its memory ran out)
	Infra  = "infra"  // neither: a retry elsewhere may work
)

// Problem is one typed failure. Slug is the end of its type URN and never changes its meaning.
type Problem struct {
	Slug      string
	Title     string
	Status    int
	Detail    string
	Retryable bool
	Cause     string         // Caller when empty
	Members   map[string]any // extra members: errno, path, field, reason, …
}

func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Title + ": " + p.Detail
}

// With sets one extra member and returns the problem, for chaining.
func (p *Problem) With(member string, value any) *Problem {
	if p.Members == nil {
		p.Members = map[string]any{}
	}
	p.Members[member] = value
	return p
}

// MarshalJSON flattens the extra members into the object, as RFC 9457 wants it.
func (p *Problem) MarshalJSON() ([]byte, error) {
	object := make(map[string]any, 7+len(p.Members))
	maps.Copy(object, p.Members)
	object["type"] = "urn:sandman:problem:" + p.Slug
	object["title"] = p.Title
	object["status"] = p.Status
	object["retryable"] = p.Retryable
	object["cause"] = p.Cause
	if p.Cause == "" {
		object["cause"] = Caller
	}
	if p.Detail != "" {
		object["detail"] = p.Detail
	}
	return json.Marshal(object)
}

// Of returns the problem inside err; anything untyped becomes "internal", which says nothing of its cause.
func Of(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return &Problem{
		Slug: "internal", Title: "The daemon failed", Status: http.StatusInternalServerError,
		Detail: err.Error(), Cause: Infra, Retryable: true,
	}
}

// Write answers a request with the problem inside err. It must be called before any other write.
func Write(w http.ResponseWriter, err error) {
	p := Of(err)
	body, marshalErr := json.Marshal(p)
	if marshalErr != nil { // a member that JSON cannot carry: the rest still must reach the caller
		body, _ = json.Marshal(&Problem{Slug: p.Slug, Title: p.Title, Status: p.Status, Detail: p.Detail,
			Retryable: p.Retryable, Cause: p.Cause})
	}
	header := w.Header()
	header.Set("Content-Type", ContentType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the caller may be gone; there is nobody left to tell
}

// FieldError is one member of a request that cannot be, and why.
type FieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Invalid is a 422: the request is well-formed HTTP, but the named field cannot be. It looks as the service's own does; field
// repeats what errors says, for whoever wants the one.
func Invalid(field, message string) *Problem {
	detail := message
	if field != "" {
		detail = field + ": " + message
	}
	return (&Problem{
		Slug: "invalid", Title: "The request has invalid fields",
		Status: http.StatusUnprocessableEntity, Detail: detail,
	}).With("errors", []FieldError{{field, message}}).With("field", field)
}
