package files

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

var hardNames = []string{
	"-rf", "a b", "a\nb", "\u00e9", "e\u0301", strings.Repeat("n", 255), strings.Repeat("é", 127), "%2e%2e", "%00", "a?b#c&d=e+f",
	"🤣.txt", `'"; touch pwn;#`, " lead", "tail ", "*", "\\", "~", "a;b", "...", "\xff\xfe", "caf\xe9", "\x01\x7f", "{}", "$(id)",
}

func TestB060NamesAreExact(t *testing.T) {
	s := start(t)
	for i, name := range hardNames {
		s.put("./"+name, fmt.Sprint(i))
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != len(hardNames) {
		t.Fatalf("%d entries, want %d: %v", len(entries), len(hardNames), err)
	}
	listed := map[string]bool{}
	for _, item := range s.want(200, "GET", "/v1/files/list", q("path", s.dir), "").json(t)["items"].([]any) {
		listed[exact(item.(map[string]any), "name")] = true
	}
	for i, name := range hardNames {
		if content, err := os.ReadFile(s.dir + "/" + name); err != nil || string(content) != fmt.Sprint(i) {
			t.Errorf("%q holds %q: %v", name, content, err)
		}
		if s.get("./"+name) != fmt.Sprint(i) {
			t.Errorf("%q: another content", name)
		}
		if !listed[name] {
			t.Errorf("%q is not in the list", name)
		}
		if stat := s.want(200, "GET", "/v1/files/stat", q("path", "./"+name), "").json(t); exact(stat, "name") != name {
			t.Errorf("stat of %q names %v", name, stat)
		}
	}
	if len(listed) != len(hardNames) {
		t.Errorf("%d listed, want %d", len(listed), len(hardNames))
	}
	for _, name := range hardNames {
		moved := s.want(200, "POST", "/v1/files/move", nil, body(map[string]any{
			"from_b64": base64.StdEncoding.EncodeToString([]byte("./" + name)),
			"to_b64":   base64.StdEncoding.EncodeToString([]byte("moved/" + name)),
		})).json(t)
		if exact(moved, "path") != s.dir+"/moved/"+name {
			t.Errorf("moved to %v", moved)
		}
	}
	s.onlyNames(s.dir, "moved")
	for i, name := range hardNames {
		s.want(200, "DELETE", "/v1/files", q("path", "moved/"+name), "")
		if left, _ := os.ReadDir(s.at("moved")); len(left) != len(hardNames)-i-1 {
			t.Fatalf("deleting %q left %d", name, len(left))
		}
	}
}

// exact is the bytes of a name in an answer.
func exact(object map[string]any, member string) string {
	if b64, ok := object[member+"_b64"].(string); ok {
		name, _ := base64.StdEncoding.DecodeString(b64)
		return string(name)
	}
	return object[member].(string)
}

func TestB060PlusIsASpaceAndSemicolonsStay(t *testing.T) {
	s := start(t)
	s.write("a b", "space", 0o644)
	s.write("x;y", "semicolon", 0o644)
	for raw, want := range map[string]string{"path=a+b": "space", "path=a%20b": "space", "path=x;y": "semicolon"} {
		response, err := http.Get(s.url + "/v1/files?" + raw)
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if string(content) != want {
			t.Errorf("%s: %s", raw, content)
		}
	}
}

func TestPathsThatCannotBe(t *testing.T) {
	s := start(t)
	for _, path := range []string{"", "a\x00b"} {
		for _, call := range []string{"GET /v1/files", "PUT /v1/files", "DELETE /v1/files", "GET /v1/files/stat", "GET /v1/files/list",
			"GET /v1/archive", "PUT /v1/archive", "GET /v1/files/watch"} {
			method, where, _ := strings.Cut(call, " ")
			if got := s.refused(422, "invalid", method, where, q("path", path), "x"); got["field"] != "path" {
				t.Errorf("%s: field %v", call, got["field"])
			}
		}
	}
	long := strings.Repeat("l", 256)
	s.refused(422, "name-too-long", "GET", "/v1/files", q("path", long), "")
	s.refused(422, "name-too-long", "PUT", "/v1/files", q("path", long), "x")
	s.refused(422, "name-too-long", "PUT", "/v1/files", q("path", "new/"+long), "x")
	s.refused(422, "name-too-long", "PUT", "/v1/files", q("path", strings.Repeat("d/", 3000)+"f"), "x")
	s.onlyNames(s.dir)
	for _, raw := range []string{"path=%zz", "path=a&path=b", "path=a&colour=red", "path=a&parents=maybe"} {
		request, _ := http.NewRequest("PUT", s.url+"/v1/files?"+raw, strings.NewReader("x"))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 422 {
			t.Errorf("%s: %d", raw, response.StatusCode)
		}
	}
	for text, field := range map[string]any{
		`{"from":"a\u0000","to":"b"}`: "from", `{"from":"a","to":""}`: "to", `{"from":"a","to":"\ud800"}`: "to", "{\"from\":\"\xff\"}": "",
		`{"from":1,"to":"b"}`: "from", `{"from":"a","to":"b","x":1}`: "x", `{"FROM":"a","to":"b"}`: "FROM",
		`{"from":"a","from_b64":"YQ==","to":"b"}`: "from", `{"from_b64":"?","to":"b"}`: "from_b64", `{"from":"a","to":"b","overwrite":1}`: "overwrite",
	} {
		if got := s.refused(422, "invalid", "POST", "/v1/files/move", nil, text); got["field"] != field {
			t.Errorf("%s: field %v", text, got["field"])
		}
	}
	for _, text := range []string{`not json`, `{"from":"a","to":"b"}{}`, ``, `[]`, `null`} {
		s.refused(400, "invalid-json", "POST", "/v1/files/move", nil, text)
	}
	s.refused(413, "request-too-large", "POST", "/v1/files/move", nil, `{"from":"`+strings.Repeat("a", maxJSONBytes)+`"}`)
	s.refused(404, "not-found", "GET", "/v1/files/other", nil, "")
	s.refused(405, "method-not-allowed", "POST", "/v1/files", nil, "")
}
