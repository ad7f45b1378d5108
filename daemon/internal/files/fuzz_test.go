package files

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Any bytes are a path, and come through a query unchanged.
func FuzzPathInQuery(f *testing.F) {
	for _, name := range hardNames {
		f.Add(name, "path="+name)
	}
	f.Fuzz(func(t *testing.T, path, raw string) {
		parsed, err := parseQuery("path="+url.QueryEscape(path), "path")
		if err != nil || parsed["path"] != path {
			t.Fatalf("%q came through as %q: %v", path, parsed["path"], err)
		}
		text, b64 := pathText(path)
		if !utf8.ValidString(text) || (b64 == "") != utf8.ValidString(path) {
			t.Fatalf("%q: %q %q", path, text, b64)
		}
		if parsed, err := parseQuery(raw, "path", "mode"); err == nil {
			_, _, _ = parsed.mode("mode")
			full := absolute("/dir", parsed["path"])
			if !strings.HasPrefix(full, "/") || strings.Contains(full, "//") || strings.Contains(full, "/./") {
				t.Fatalf("%q became %q", parsed["path"], full)
			}
			if absolute("/dir", full) != full {
				t.Fatalf("%q is not stable", full)
			}
			dir, name := splitLast(full)
			if strings.Contains(name, "/") || name == "." || name == ".." || (name != "" && dir+name != full) {
				t.Fatalf("%q split into %q and %q", full, dir, name)
			}
		}
		if parts, err := parseCursor(raw); err == nil {
			for _, part := range parts {
				if part == ".." || strings.Contains(part, "/") {
					t.Fatalf("cursor %q leads to %q", raw, parts)
				}
			}
		}
	})
}

func FuzzRange(f *testing.F) {
	for _, header := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=9223372036854775807-", "bytes=-99999999999999999999", "bytes=1-2,3-4", ""} {
		f.Add(header, int64(1000))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		kind, start, length := parseRange(header, size)
		switch kind {
		case wholeFile:
			if start != 0 || length != size {
				t.Fatalf("%q of %d: %d+%d", header, size, start, length)
			}
		case partOfFile:
			if start < 0 || length < 1 || start > size-length {
				t.Fatalf("%q of %d: %d+%d", header, size, start, length)
			}
		}
	})
}

// A JSON body that is accepted decodes to the very names that were written.
func FuzzJSONBody(f *testing.F) {
	for _, text := range []string{`{"from":"a","to":"b"}`, `{"from":"\ud83e\udd23","to":"\\ud800"}`, `{"from":"\ud800"}`, `{"from":"\udc00\ud800"}`, "\xff", `{"from":"\`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := httptest.NewRequest("POST", "/v1/files/move", bytes.NewReader(text))
		request, err := readJSON(r, "from", "from_b64", "to", "to_b64")
		if err != nil {
			return
		}
		path, err := request.path("from")
		if err == nil && strings.Contains(path, "\uFFFD") && !bytes.Contains(text, []byte("from_b64")) &&
			!bytes.Contains(text, []byte("\uFFFD")) && !bytes.Contains(bytes.ToLower(text), []byte(`\ufffd`)) {
			t.Fatalf("%q was repaired to %q", text, path)
		}
	})
}

func FuzzInotifyEvents(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'a', 0, 0, 0})
	f.Fuzz(func(t *testing.T, buffer []byte) {
		for _, event := range parseEvents(buffer) {
			if strings.ContainsRune(event.name, 0) {
				t.Fatalf("%q", event.name)
			}
		}
	})
}

// Whatever an archive holds, nothing outside the folder changes and nothing temporary stays.
func FuzzExtract(f *testing.F) {
	f.Add(archive(file("a", "x"), symlink("l", ".."), file("l/pwn", "x")))
	f.Add(archive(file("../pwn", "x"), hardlink("h", "../outside")))
	f.Add(archive(symlink("a", "b"), symlink("b", "../.."), file("a/pwn", "x"), file("d/e/f", strings.Repeat("y", 600))))
	f.Fuzz(func(t *testing.T, content []byte) {
		root := t.TempDir()
		if err := os.Mkdir(root+"/in", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+"/outside", []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		handler := New(Options{DefaultDir: root, MaxArchiveBytes: 1 << 20})
		answer := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodPut, "/v1/archive?path=in", bytes.NewReader(content))
		handler.ServeHTTP(answer, request)
		if answer.Code >= 500 {
			t.Fatalf("%d %s", answer.Code, answer.Body)
		}
		entries, _ := os.ReadDir(root)
		kept, _ := os.ReadFile(root + "/outside")
		if st, err := os.Stat(root + "/outside"); err != nil || len(entries) != 2 || string(kept) != "untouched" || st.Mode() != 0o600 {
			t.Fatalf("%v %q %v", entries, kept, err)
		}
		_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if strings.HasSuffix(path, ".part") && strings.HasPrefix(filepath.Base(path), ".sandman-") {
				t.Errorf("%s stays", path)
			}
			if err == nil && entry.IsDir() {
				_ = os.Chmod(path, 0o700) // so that the test can clean up
			}
			return nil
		})
	})
}
