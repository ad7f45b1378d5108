package files

// What the tests share: a real server on a real socket, and calls that fail the test when they cannot be made.

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandman.dev/daemon/internal/httpd"
)

type service struct {
	*testing.T
	url string
	dir string // DefaultDir: a fresh folder, open to all users
}

func start(t *testing.T, change ...func(*Options)) *service {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "files-test-") // not t.TempDir: its parent is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	options := Options{DefaultDir: dir}
	for _, c := range change {
		c(&options)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() { _ = (&httpd.Server{Handler: New(options)}).Serve(listener) }()
	return &service{T: t, url: "http://" + listener.Addr().String(), dir: dir}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t testing.TB) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(a.body, &object); err != nil {
		t.Fatalf("no JSON: %v: %q", err, a.body)
	}
	return object
}

func (s *service) try(method, path string, query url.Values, body io.Reader) (answer, error) {
	request, err := http.NewRequest(method, s.url+path+"?"+query.Encode(), body)
	if err != nil {
		return answer{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, content}, err
}

func (s *service) call(method, path string, query url.Values, body string) answer {
	s.Helper()
	got, err := s.try(method, path, query, strings.NewReader(body))
	if err != nil {
		s.Fatalf("%s %s %v: %v", method, path, query, err)
	}
	return got
}

func (s *service) want(status int, method, path string, query url.Values, body string) answer {
	s.Helper()
	got := s.call(method, path, query, body)
	if got.status != status {
		s.Fatalf("%s %s %v: %d, want %d: %s", method, path, query, got.status, status, got.body)
	}
	return got
}

// refused wants a problem of one type and returns it.
func (s *service) refused(status int, slug, method, path string, query url.Values, body string) map[string]any {
	s.Helper()
	got := s.want(status, method, path, query, body)
	if got.header.Get("Content-Type") != "application/problem+json" {
		s.Fatalf("%s %s: content type %q", method, path, got.header.Get("Content-Type"))
	}
	object := got.json(s)
	if object["type"] != "urn:sandman:problem:"+slug {
		s.Fatalf("%s %s %v: %v, want %s", method, path, query, object, slug)
	}
	for _, member := range []string{"title", "status", "retryable", "cause"} {
		if _, there := object[member]; !there {
			s.Fatalf("%s %s: no member %s: %v", method, path, member, object)
		}
	}
	return object
}

func (s *service) put(path, content string) {
	s.Helper()
	got := s.call("PUT", "/v1/files", q("path", path), content)
	if got.status != 200 && got.status != 201 {
		s.Fatalf("put %q: %d %s", path, got.status, got.body)
	}
}

func (s *service) get(path string) string {
	s.Helper()
	return string(s.want(200, "GET", "/v1/files", q("path", path), "").body)
}

// q makes a query of names and values.
func q(pairs ...string) url.Values {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return values
}

func body(object map[string]any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (s *service) at(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *service) write(name, content string, mode os.FileMode) {
	s.Helper()
	if err := os.WriteFile(s.at(name), []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
	if err := os.Chmod(s.at(name), mode); err != nil {
		s.Fatal(err)
	}
}

// onlyNames fails when the folder holds anything else: a temporary file, say.
func (s *service) onlyNames(folder string, names ...string) {
	s.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		s.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	if strings.Join(found, "\x00") != strings.Join(names, "\x00") {
		s.Fatalf("%s holds %q, want %q", folder, found, names)
	}
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("changes users: runs where the tests run as root")
	}
}

type zeros struct{ left int64 }

func (z *zeros) Read(buffer []byte) (int, error) {
	if z.left <= 0 {
		return 0, io.EOF
	}
	n := min(int64(len(buffer)), z.left)
	clear(buffer[:n])
	z.left -= n
	return int(n), nil
}

func random(seed byte, size int) []byte {
	content := bytes.Repeat([]byte{seed}, size)
	state := uint32(seed) + 1
	for i := range content {
		state = state*1664525 + 1013904223
		content[i] = byte(state >> 24)
	}
	return content
}
